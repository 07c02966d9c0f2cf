# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_seawall_global_optspecs
    string join \n h/help V/version
end

function __fish_seawall_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_seawall_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_seawall_using_subcommand
    set -l cmd (__fish_seawall_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c seawall -n "__fish_seawall_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c seawall -n "__fish_seawall_needs_command" -s V -l version -d 'Print version'
complete -c seawall -n "__fish_seawall_needs_command" -f -a "run" -d 'Run the daemon'
complete -c seawall -n "__fish_seawall_needs_command" -f -a "check" -d 'Load everything that `run` would and report all mistakes'
complete -c seawall -n "__fish_seawall_needs_command" -f -a "demo" -d 'Everything in one process with nothing installed: a fleet loses its tower and comes back'
complete -c seawall -n "__fish_seawall_needs_command" -f -a "certs" -d 'Write a throw-away CA, server and client certificate for trials'
complete -c seawall -n "__fish_seawall_needs_command" -f -a "secret" -d 'Print a new ticket secret for `tls.resumption.secret_file`'
complete -c seawall -n "__fish_seawall_using_subcommand run" -l config -d 'Configuration file [default: config/seawall.toml, then /etc/seawall/seawall.toml]' -r -F
complete -c seawall -n "__fish_seawall_using_subcommand run" -l set -d 'Set one key, such as `--set admission.rate=500`; beats environment and file' -r
complete -c seawall -n "__fish_seawall_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c seawall -n "__fish_seawall_using_subcommand check" -l config -d 'Configuration file [default: config/seawall.toml, then /etc/seawall/seawall.toml]' -r -F
complete -c seawall -n "__fish_seawall_using_subcommand check" -l set -d 'Set one key, such as `--set admission.rate=500`; beats environment and file' -r
complete -c seawall -n "__fish_seawall_using_subcommand check" -l print -d 'Print the effective configuration as TOML, each key with where its value comes from'
complete -c seawall -n "__fish_seawall_using_subcommand check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c seawall -n "__fish_seawall_using_subcommand demo" -l devices -d 'Devices in the fleet, fitted to the descriptor limit' -r
complete -c seawall -n "__fish_seawall_using_subcommand demo" -l rate -d 'CONNECTs a second that reach the broker [default: fitted to the broker\'s capacity]' -r
complete -c seawall -n "__fish_seawall_using_subcommand demo" -l policy -d 'How the devices pause between attempts' -r
complete -c seawall -n "__fish_seawall_using_subcommand demo" -l upstream -d 'A real broker in place of the embedded one' -r
complete -c seawall -n "__fish_seawall_using_subcommand demo" -l out -d 'Folder for the throw-away certificates' -r -F
complete -c seawall -n "__fish_seawall_using_subcommand demo" -l stay -d 'Keep running after the storm, for trials by hand'
complete -c seawall -n "__fish_seawall_using_subcommand demo" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c seawall -n "__fish_seawall_using_subcommand certs" -l out -d 'Folder for the PEM files; made where it is missing' -r -F
complete -c seawall -n "__fish_seawall_using_subcommand certs" -l name -d 'DNS name or IP address of the server, besides localhost, 127.0.0.1 and `::1`' -r
complete -c seawall -n "__fish_seawall_using_subcommand certs" -s h -l help -d 'Print help'
complete -c seawall -n "__fish_seawall_using_subcommand secret" -s h -l help -d 'Print help (see more with \'--help\')'
