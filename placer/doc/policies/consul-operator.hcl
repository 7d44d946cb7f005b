# Consul policy of operators, beside that of users: commands that change something (muster set, preempt, release).
# global is Nomad's region.

key_prefix "muster/global/orders/" {
  policy = "write" # an order says what is wanted; the leading placer checks and carries it out
}
