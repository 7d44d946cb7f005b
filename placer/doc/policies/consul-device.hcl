# Consul policy of the device plugin on node n1, whose Consul agent has the same name; global is Nomad's region.

key "muster/global/nodes/n1" {
  policy = "write" # its inventory; without it the node is not in the ledger
}

key "muster/global/health/n1" {
  policy = "write" # which GPUs are well; without it the placer takes all for healthy
}

key "muster/global/acks/n1" {
  policy = "write" # what it has acted on; without it no GPU of this node is ever free again
}

key "muster/global/slots/n1" {
  policy = "read" # its slots; without it it offers none
}

key_prefix "muster/global/claims/n1/" {
  policy = "write" # claims of tasks without the muster driver, and the end of those that a driver has left behind
}

key_prefix "muster/global/gangs/" {
  policy = "read" # the hosts file and master address of tasks without the muster driver
}

session "n1" {
  policy = "write" # by which it holds its inventory; without it the node is not in the ledger
}
