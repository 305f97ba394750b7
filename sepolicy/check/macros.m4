define(`init_daemon_domain', `
allow init $1_exec:file { getattr map open read execute };
allow $1 $1_exec:file { getattr map open read execute entrypoint };
allow init $1:process transition;
type_transition init $1_exec:process $1;
')
