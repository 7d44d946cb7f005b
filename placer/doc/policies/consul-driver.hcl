# Consul policy of the task driver on node n1; global is Nomad's region.

key "muster/global/slots/n1" {
  policy = "read" # whose slots these are; without it no task starts
}

key_prefix "muster/global/claims/n1/" {
  policy = "write" # its tasks' claims; without it no task starts
}

key_prefix "muster/global/gangs/" {
  policy = "read" # the members' addresses and the gang's shape; without it no task starts
}

key_prefix "muster/global/runs/" {
  policy = "write" # barrier, checkpoints, how members ended. Of all gangs: which ones come here is known only when they do
}
