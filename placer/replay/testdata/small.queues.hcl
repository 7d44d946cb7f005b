# Two teams that own half of small.cluster.csv each.
queue "alpha" {
  quota = 8
}
queue "beta" {
  quota   = 8
  preempt = true
}
