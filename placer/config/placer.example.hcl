# Every option of `muster placer -config placer.hcl`, each with its default where it has one. A flag goes before an
# environment variable (CONSUL_*, NOMAD_*), that before this file.

# Nomad's region. Part of every key in Consul, so that two Nomad clusters on one Consul never meet.
region = "global"

# What this placer calls itself in logs and as the leader. Default: the host's name.
name = "placer-1"

# debug, info, warn or error.
log_level = "info"

# How long a node may be silent before its gang may go on elsewhere. Jobs with a shorter max_client_disconnect are
# refused. At least 10s.
fence_time = "2m"

# How long after a grant Nomad may take until an allocation names every slot; then the gang is queued again. Nomad's
# clients need 5 to 10 s to offer new slots, so at least 20s.
placement_deadline = "60s"

# How long after a grant every task may take to claim its slot: downloads, templates and prestart tasks come first.
start_timeout = "15m"

# How many times in a row a gang's command may fail, at its start or later, before the gang fails for good and its job is
# stopped with the reason. Drains, lost nodes and preemption do not count; a run of 10 minutes or a new version of the job
# starts the count anew. 0 to 1000; 0 means no limit.
max_failures = 8

# How often the placer decides although nothing has changed. 100ms to 1m.
tick = "1s"

# How often everything is listed from Nomad again although its event stream told of no change. 1s to 10m.
relist_interval = "30s"

topology {
  # The levels above the node that muster_locality may name, outermost first. A node's labels come from the config of
  # its device plugin. Default: none.
  levels = ["zone", "rack"]
}

ports {
  # First of the ports that tasks without the muster driver meet on; each reservation takes three in a row on the node of
  # its rank 0. Put the range into reserved_ports of Nomad's clients. 1024 to 65000.
  base = 20000
}

consul {
  # host:port or a URL; CONSUL_HTTP_ADDR.
  address = "127.0.0.1:8500"

  # CONSUL_HTTP_TOKEN. Better there than here.
  token = "00000000-0000-0000-0000-000000000000"

  # PEM files for https; CONSUL_CACERT, CONSUL_CLIENT_CERT, CONSUL_CLIENT_KEY.
  ca_file   = "/etc/muster/consul-ca.pem"
  cert_file = "/etc/muster/consul-cert.pem"
  key_file  = "/etc/muster/consul-key.pem"

  # The name that the server's certificate must bear; CONSUL_TLS_SERVER_NAME. Default: the host of the address.
  server_name = "consul.example.com"
}

nomad {
  # A URL; NOMAD_ADDR.
  address = "http://127.0.0.1:4646"

  # NOMAD_TOKEN. Better there than here.
  token = "00000000-0000-0000-0000-000000000000"

  # PEM files for https; NOMAD_CACERT, NOMAD_CLIENT_CERT, NOMAD_CLIENT_KEY.
  ca_file   = "/etc/muster/nomad-ca.pem"
  cert_file = "/etc/muster/nomad-cert.pem"
  key_file  = "/etc/muster/nomad-key.pem"

  # The name that the server's certificate must bear; NOMAD_TLS_SERVER_NAME. Default: the host of the address.
  server_name = "nomad.example.com"
}
