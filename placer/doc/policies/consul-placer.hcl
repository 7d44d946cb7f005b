# Consul policy of a placer. p1 is the name of the Consul agent that it speaks to, global Nomad's region.

key_prefix "muster/global/" {
  policy = "write" # who leads, slots, gangs, refusals, use of queues, and removing runs: the placer owns the GPUs
}

session "p1" {
  policy = "write" # its lease; without it no placer leads
}

service "muster-placer" {
  policy = "write" # its own health check, on which the lease rests; without it no placer leads
}

node "p1" {
  policy = "read" # to see that Consul's servers know of that check
}
