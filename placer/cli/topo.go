// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nomad-muster/muster/driver/gpu"
	"github.com/nomad-muster/muster/driver/gpu/nvml"
)

// TopoCommand shows this machine's GPUs and how they are joined.
type TopoCommand struct{ Meta }

// topoView is what `muster topo -json` prints.
type topoView struct {
	Machine gpu.Machine           `json:"machine"`
	Health  map[string]gpu.Health `json:"health"`
	Islands [][]int               `json:"islands"` // GPU indexes
	Choice  *choiceView           `json:"choice,omitempty"`
}

// choiceView is the set that a member of K GPUs would get on this machine with nothing else on it.
type choiceView struct {
	GPUs      []int    `json:"gpus"`    // indexes
	Weakest   gpu.Link `json:"weakest"` // the weakest link within the set
	TotalMBps int      `json:"total_mbps"`
	OneIsland bool     `json:"one_island"`
	text      string
}

// Synopsis is one line for the list of commands.
func (c *TopoCommand) Synopsis() string { return "Show this machine's GPUs, links and islands" }

// Help is the whole usage.
func (c *TopoCommand) Help() string {
	return strings.TrimSpace(`
Usage: muster topo [options]

  Shows the GPUs of this machine as NVML gives them: the links between each
  pair, and the islands that NVLink joins.

Topo Options:

  -choose=<K>
    Also show which K GPUs a gang member would get if all were free.

  -json
    Print JSON.

  -nvml-library=<path>
    NVML's shared library. Default: libnvidia-ml.so.1, wherever the loader finds it.
`)
}

// Run prints the topology.
func (c *TopoCommand) Run(args []string) int {
	var asJSON bool
	var k int
	var library string
	fs := c.flags("topo")
	fs.BoolVar(&asJSON, "json", false, "")
	fs.IntVar(&k, "choose", 0, "")
	fs.StringVar(&library, "nvml-library", "", "")
	if !c.parse(fs, args, c) {
		return 1
	}
	view, err := readTopo(library, k)
	if err != nil {
		return c.fail(err)
	}
	if asJSON {
		return c.printJSON(view)
	}
	c.UI.Output(view.text())
	return 0
}

// readTopo reads NVML once and chooses k of the GPUs that could be given away; k = 0 chooses none.
func readTopo(library string, k int) (view topoView, err error) {
	lib, err := nvml.Open(library)
	if err != nil {
		return topoView{}, err
	}
	defer func() { err = errors.Join(err, lib.Shutdown()) }()
	machine, health, err := lib.Discover()
	if err != nil {
		return topoView{}, err
	}
	topology := gpu.NewTopology(machine)
	view = topoView{Machine: machine, Health: health, Islands: [][]int{}}
	for _, island := range topology.Islands() {
		view.Islands = append(view.Islands, island.Indexes())
	}
	if k == 0 {
		return view, nil
	}
	free := machine.Free(health, nil, nil)
	choice, ok := topology.Choose(k, free)
	if !ok {
		return topoView{}, fmt.Errorf("can't choose %d GPUs: this machine has %d that could be given to a gang", k, free.Len())
	}
	view.Choice = &choiceView{
		GPUs: choice.GPUs.Indexes(), Weakest: choice.Weakest, TotalMBps: choice.TotalMBps, OneIsland: choice.OneIsland,
		text: choice.String(),
	}
	return view, nil
}

func (v topoView) text() string {
	text := strings.TrimRight(gpu.Render(v.Machine), "\n")
	for _, g := range v.Machine.GPUs {
		if h, ok := v.Health[g.UUID]; ok && h.State != gpu.Healthy {
			text += fmt.Sprintf("\nGPU %d is %s: %s", g.Index, h.State, h.Reason)
		}
	}
	if v.Choice == nil {
		return text
	}
	return text + fmt.Sprintf("\n\nA member of %d would get %s", len(v.Choice.GPUs), v.Choice.text)
}
