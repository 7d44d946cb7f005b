# Nomad policy of a placer.

namespace "*" {
  capabilities = [
    "list-jobs",       # which jobs there are; without it the placer decides nothing
    "read-job",        # what they ask for and what became of their allocations; without it the placer decides nothing
    "scale-job",       # to say in Nomad's UI and `nomad job scaling-events` why a gang waits; without it only Muster says it
    "alloc-lifecycle", # to signal tasks without the muster driver; without it such a gang ends only by itself
    "submit-job",      # to end a finished gang's job, and to stop or run again one that Nomad's books would break
  ]
}

node {
  policy = "read" # which nodes may be used; without it the placer decides nothing
}
