# Every option of a queue file, as `muster queue apply queues.hcl` takes it. A cluster without one has one queue without
# quota or limit. GPUs are whole GPUs of any model.

policy {
  # Used GPU time counts half as much after this long when shares are compared.
  half_life = "24h"

  # A gang is never preempted sooner after its start.
  min_runtime = "10m"

  # Lent quota is taken back by preemption only while more than this share of all usable GPUs is in use. 0.01 to 1;
  # 1: never.
  reclaim_above = 0.9

  # How often one gang is preempted within a day at most. 1 to 8.
  evictions = 3

  # A gang that has waited this long goes before all younger ones of its queue.
  age_bound = "24h"

  # Whether gangs are moved to make room for another, or the moves are only proposed.
  defragment = false
}

queue "research" {
  # GPUs that the queue is owed: what it does not use is lent to others, and comes back when it is needed. Default 0.
  quota = 64

  # GPUs that it may hold at most, borrowed ones included. Default: no limit.
  max = 96

  # Its part, beside its siblings, of what nobody is owed or uses. Default 1.
  weight = 2

  # Only jobs of these Nomad namespaces may use it, and they are here if they name no queue. Each namespace is in at most
  # one list. Default: the list of the queue around this one; at the top, everybody may use it.
  namespaces = ["research"]

  # Whether a gang of higher priority may preempt one of lower priority of this queue. Default false.
  preempt = true

  # Nomad job priorities that it takes, both ends included. Default: those of the queue around this one, else all.
  priority {
    min = 10
    max = 80
  }

  # What holds for jobs that do not say it in their meta. Default: that of the queue around this one, else Muster's.
  defaults {
    nvlink      = "preferred"
    locality    = "rack"
    relax_after = "auto"
  }

  # Its full name is research.vision. Quotas inside a queue are part of its own.
  queue "vision" {
    quota = 32
  }

  queue "speech" {
    quota      = 16
    namespaces = ["speech"]
  }
}

# Jobs that name no queue, and whose namespace is in no list. Without this block it is there all the same, without quota
# and without limit.
queue "default" {
  max = 32
}
