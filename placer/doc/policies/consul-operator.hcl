# Consul policy of operators, beside that of users: commands that change something (muster set, preempt, release,
# queue apply).
# global is Nomad's region.

key_prefix "muster/global/orders/" {
  policy = "write" # an order says what is wanted; the leading placer checks and carries it out
}

key "muster/global/queues" {
  policy = "write" # queues and the policy's settings; without it muster queue apply can only check a file
}
