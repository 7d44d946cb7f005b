# Nomad policy of the device plugins.

namespace "*" {
  capabilities = ["read-job"] # whose allocation holds a slot; without it no GPU is free again, and only the muster driver starts tasks
}

node {
  policy = "read" # the allocations of its own node; as above
}

agent {
  policy = "read" # the node's name and ID; without it the node is not in the ledger
}
