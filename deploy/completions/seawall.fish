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
complete -c seawall -n "__fish_seawall_needs_command" -f -a "health" -d 'Ask a running daemon whether it lives'
complete -c seawall -n "__fish_seawall_needs_command" -f -a "report" -d 'The after-action report of one or several audit logs'
complete -c seawall -n "__fish_seawall_needs_command" -f -a "secret" -d 'Print a new ticket secret for `tls.resumption.secret_file`'
complete -c seawall -n "__fish_seawall_needs_command" -f -a "demo" -d 'Everything in one process with nothing installed: a fleet loses its tower and comes back'
complete -c seawall -n "__fish_seawall_needs_command" -f -a "storm" -d 'Hit an endpoint with a simulated fleet: real TLS, real MQTT'
complete -c seawall -n "__fish_seawall_needs_command" -f -a "plan" -d 'A fleet and its broker in virtual time: what a storm would do, with and without the proxy'
complete -c seawall -n "__fish_seawall_needs_command" -f -a "certs" -d 'Write a throw-away CA, server and client certificate for trials'
complete -c seawall -n "__fish_seawall_using_subcommand run" -l config -d 'Configuration file [default: config/seawall.toml, then /etc/seawall/seawall.toml]' -r -F
complete -c seawall -n "__fish_seawall_using_subcommand run" -l set -d 'Set one key, such as `--set admission.rate=500`; beats environment and file' -r
complete -c seawall -n "__fish_seawall_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c seawall -n "__fish_seawall_using_subcommand check" -l config -d 'Configuration file [default: config/seawall.toml, then /etc/seawall/seawall.toml]' -r -F
complete -c seawall -n "__fish_seawall_using_subcommand check" -l set -d 'Set one key, such as `--set admission.rate=500`; beats environment and file' -r
complete -c seawall -n "__fish_seawall_using_subcommand check" -l print -d 'Print the effective configuration as TOML, each key with where its value comes from'
complete -c seawall -n "__fish_seawall_using_subcommand check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c seawall -n "__fish_seawall_using_subcommand health" -l timeout -d 'How long to wait for the answer' -r
complete -c seawall -n "__fish_seawall_using_subcommand health" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c seawall -n "__fish_seawall_using_subcommand report" -l html -d 'Write the report as one HTML file with charts as well' -r -F
complete -c seawall -n "__fish_seawall_using_subcommand report" -l capacity -d 'CONNECTs a second that the brokers can take [default: the admission rates in the logs]' -r
complete -c seawall -n "__fish_seawall_using_subcommand report" -l json -d 'Print the figures as JSON instead of text'
complete -c seawall -n "__fish_seawall_using_subcommand report" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c seawall -n "__fish_seawall_using_subcommand secret" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c seawall -n "__fish_seawall_using_subcommand demo" -l devices -d 'Devices in the fleet, fitted to the descriptor limit' -r
complete -c seawall -n "__fish_seawall_using_subcommand demo" -l rate -d 'CONNECTs a second that reach the broker [default: fitted to the broker\'s capacity]' -r
complete -c seawall -n "__fish_seawall_using_subcommand demo" -l policy -d 'How the devices pause between attempts' -r
complete -c seawall -n "__fish_seawall_using_subcommand demo" -l upstream -d 'A real broker in place of the embedded one' -r
complete -c seawall -n "__fish_seawall_using_subcommand demo" -l out -d 'Folder for the throw-away certificates' -r -F
complete -c seawall -n "__fish_seawall_using_subcommand demo" -l audit -d 'Write the proxy\'s audit log there, for `seawall report`' -r -F
complete -c seawall -n "__fish_seawall_using_subcommand demo" -l stay -d 'Keep running after the storm, for trials by hand'
complete -c seawall -n "__fish_seawall_using_subcommand demo" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l target -d 'What is hit' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l devices -d 'Devices in the fleet' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l limit -d 'Longest time for the return' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l rate -d 'Devices a second that the target lets in at best: the report compares with it' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l json -d 'Write the report as JSON' -r -F
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l html -d 'Write the report as one HTML file with its charts' -r -F
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l part -d 'This process is part K of N' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l pattern -d 'What happens to them' -r -f -a "cold\t'Nobody is connected; all are switched on'
tower\t'A share of the devices loses its network and gets it back'
restart\t'All connections end at once, and the target is there again at once'
rolling\t'The fleet loses its network part by part'"
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l share -d 'tower: hundredths of the devices that lose it' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l outage -d 'tower, rolling: how long the network is away' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l spread -d 'cold: how long booting takes at most' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l parts -d 'rolling: parts of the fleet' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l every -d 'rolling: from the loss of one part to that of the next' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l restart-command -d 'restart: shell command that restarts the broker [default: the devices close their connections]' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l calm -d 'How long the bystanders are watched before anything happens' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l fill-limit -d 'Longest time for the first connections' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l mix -l policy -d 'How devices pause between attempts, by share' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l retry -d 'Pause of the policy `fixed`' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l base -d 'First pause of the other policies' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l multiplier -d 'From one of their pauses to the next' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l cap -d 'Their longest pause' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l patience -d 'Dial to CONNACK, after which a device gives up' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l keep-alive -d 'Keep-alive of the devices, in whole seconds' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l protocol -d 'Version of MQTT; both: half of the devices each' -r -f -a "3.1.1\t''
5\t''
both\t''"
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l persistent -d 'Hundredths of the devices with a persistent session' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l client-id -d 'Client ids and bystanders\' topics begin with this' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l username -d 'User name; the letter n in braces in it stands for the number of the device' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l password-file -d 'File with the password in its first line' -r -F
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l seed -d 'The same number gives the same pauses' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l tls -d 'TLS that the devices offer' -r -f -a "any\t'1.3, or 1.2 where the target has no more'
1.2\t''
1.3\t''
none\t'MQTT on bare TCP'"
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l ca -d 'Authorities that the devices trust, PEM' -r -F
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l server-name -d 'Name that the server\'s certificate must bear, and that is asked for [default: the target\'s host]' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l cert -d 'Certificate that all devices present, PEM' -r -F
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l key -d 'Its private key, PEM' -r -F
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l pairs -d 'Bystanders: connected pairs that publish throughout, and measure' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l publish-every -d 'How often each pair publishes' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l threads -d 'Threads for the devices [default: one for each core]' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l processes -d 'Processes for the devices [default: as many as the descriptor limit asks for]' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l sources -d 'Addresses of 127/8 that devices dial from [default: one for each device]' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l source -d 'Addresses of this machine that devices dial from, in turn' -r
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l i-own-this -d 'Needed where the target is not this machine'
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l heed-retry-after -d 'Devices heed the `retry-after-ms` of a refusal (MQTT 5)'
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l insecure -d 'Devices trust whatever the server presents'
complete -c seawall -n "__fish_seawall_using_subcommand storm" -l no-resumption -d 'Devices keep no session tickets: every handshake is a full one'
complete -c seawall -n "__fish_seawall_using_subcommand storm" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l devices -d 'Devices that lose their connections, up to 10 million' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l mix -d 'Policy of the devices, or several by share, such as fixed:60,full:40' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l fixed -d 'Pause of devices with a fixed one' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l base -d 'First ceiling of the other policies' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l multiplier -d 'From one ceiling to the next' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l cap -d 'Longest ceiling' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l patience -d 'Dial to CONNACK, after which a device gives up' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l v5 -d 'Share that speaks MQTT 5.0, in per cent' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l heeding -d 'Share of those that waits as long as `retry-after-ms` says, in per cent' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l resumed -d 'Share that brings a TLS ticket, in per cent' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l pattern -d 'tower, cold, broker or rolling' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l outage -d 'From the loss of the connections until there is a way back' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l over -d 'Time within which devices boot, or are hit' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l round-trip -d 'Round trip between devices and front; each attempt is late by up to as much again, at random' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l capacity -d 'Logins a second that it bears' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l servers -d 'Logins that it works on side by side' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l queue -d 'CONNECTs that it queues; beyond it one is reset' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l front -d 'What the devices connect to' -r -f -a "both\t'The broker, then a Seawall in front of it'
none\t'The broker itself'
seawall\t'A Seawall in front of it'"
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l rate -d 'CONNECTs a second that reach the broker, with a burst of one second\'s worth' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l config -d 'Configuration file whose `[admission]`, `[handshake]`, `[refusal]` and `[upstream]` count; else the defaults' -r -F
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l set -d 'Set one key, such as `--set admission.max_wait=4s`; beats environment and file' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l handshake-cost -d 'Cryptography of a full handshake on its machine; all that it does costs in proportion' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l cores -d 'Cores of its machine' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l watch -d 'End the run this long after the network is back, whoever is still out' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l seed -d 'The same seed gives the same run' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l sweep -d 'Run once for each value of one setting: KEY=FROM..TO, KEY=FROM..TO:STEPS or KEY=VALUE,VALUE' -r
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l html -d 'Write a page with charts' -r -F
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l json -d 'Write settings and outcomes, second by second; `-` is stdout, in place of the tables' -r -F
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l clean -d 'Sessions that begin and end clean: `admission.cost.clean` instead of `.persistent`'
complete -c seawall -n "__fish_seawall_using_subcommand plan" -l calibrate -d 'Measure that on this machine, for half a second'
complete -c seawall -n "__fish_seawall_using_subcommand plan" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c seawall -n "__fish_seawall_using_subcommand certs" -l out -d 'Folder for the PEM files; made where it is missing' -r -F
complete -c seawall -n "__fish_seawall_using_subcommand certs" -l name -d 'DNS name or IP address of the server, besides localhost, 127.0.0.1 and `::1`' -r
complete -c seawall -n "__fish_seawall_using_subcommand certs" -l keep -d 'Leave those that an earlier call has written, whatever their names'
complete -c seawall -n "__fish_seawall_using_subcommand certs" -s h -l help -d 'Print help (see more with \'--help\')'
