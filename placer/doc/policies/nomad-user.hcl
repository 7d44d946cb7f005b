# Nomad policy of somebody who runs gangs in the namespace default: nothing in it is particular to Muster.

namespace "default" {
  policy = "write"
}
