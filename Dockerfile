# The daemon in a small image: `docker build -t seawall .`
#
# No HEALTHCHECK: the image has no client for it, and an orchestrator probes better. Use /healthz (alive) and /readyz
# (a broker is usable) on the admin port; deploy/compose shows one way.

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY config config
COPY src src
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin seawall \
    && strip --strip-debug target/release/seawall -o /seawall

FROM debian:bookworm-slim
# A fixed number, so that orchestrators that insist on a numeric non-root user are content.
RUN groupadd --system --gid 8883 seawall \
    && useradd --system --uid 8883 --gid seawall --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin seawall \
    # A volume mounted here takes over the owner, so that `seawall certs` can write to it.
    && install --directory --owner=seawall --group=seawall --mode=0750 /certs
COPY --from=build /seawall /usr/local/bin/seawall
USER 8883:8883
# 8883: MQTT over TLS. 9883: admin, on loopback unless the configuration says otherwise.
EXPOSE 8883 9883
STOPSIGNAL SIGTERM
ENTRYPOINT ["seawall"]
CMD ["run", "--config", "/etc/seawall/seawall.toml"]
