# Two images without a shell or a package manager. The second one is the default:
#
#   docker build -t seawall .                          the daemon alone
#   docker build --target trial -t seawall:trial .     with demo, storm, plan and certs as well
#
# What is in them: deploy/image/filesystem.

FROM rust:1.95-slim-bookworm AS source
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY config config
COPY src src
COPY deploy/image/filesystem /usr/local/bin/filesystem
# Mounted over volumes, these hand them to the user of the images: certificates, and what is written (audit, takeover).
RUN install --directory --owner=8883 --group=8883 --mode=0750 /owned/certs /owned/data

FROM source AS daemon-files
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --no-default-features --features daemon \
    && filesystem target/release/seawall /image

FROM source AS trial-files
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked \
    && filesystem target/release/seawall /image

FROM scratch AS base
COPY --from=source --chown=8883:8883 /owned/ /
USER 8883:8883
# 8883: MQTT over TLS. 9883: admin, on loopback unless the configuration says otherwise.
EXPOSE 8883 9883
STOPSIGNAL SIGTERM
# Whether it lives, not whether a broker does: a restart would not mend that. Another port of `admin.address` wants
# another URL here (docker run --health-cmd, healthcheck in compose).
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["/usr/bin/seawall", "health"]
ENTRYPOINT ["/usr/bin/seawall"]
CMD ["run", "--config", "/etc/seawall/seawall.toml"]

FROM base AS trial
COPY --from=trial-files /image/ /

FROM base AS daemon
COPY --from=daemon-files /image/ /
