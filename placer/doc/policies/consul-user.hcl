# Consul policy of people who look: muster gangs, gang, nodes, status, run. global is Nomad's region.

key_prefix "muster/global/" {
  policy = "read"
}
