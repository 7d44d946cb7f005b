// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package jobspecs

import "time"

// nomadMaxKillTimeout is what a Nomad client grants at most unless its own configuration says more.
const nomadMaxKillTimeout = 30 * time.Second

// checkTask warns of what would lose checkpoints, or surprise, without breaking the gang.
func (r *reader) checkTask(t target, group Group, size int) {
	r.checkKillTimeout(t, group)
	r.checkTemplates(t)
	if c := group.Checkpoint; c != nil && c.Path == "" {
		r.warn(t.at.in("config").in("checkpoint"), `write path = ... where finished checkpoints appear`,
			"the checkpoint block has no path: nobody can tell whether a checkpoint was finished")
	}
	if group.Driver != "muster" && size > 1 {
		r.warn(t.at.attribute("driver"), `use driver = "muster" if members must wait for one another`,
			"the %s driver has no barrier: members start up to 10s apart, and one that ends well does not wait for the others", group.Driver)
	}
	if (group.Driver == "docker" || group.Driver == "podman") && size > 1 {
		if mode, _ := t.task.Config["network_mode"].(string); mode != "host" {
			r.warn(t.at.in("config").attribute("network_mode"), `write network_mode = "host"`,
				"without the host's network the members can't reach rank 0 at its master address")
		}
	}
}

func (r *reader) checkKillTimeout(t target, group Group) {
	at, kill := t.at.attribute("kill_timeout"), group.KillTimeout
	if kill > nomadMaxKillTimeout {
		r.warn(at, "make sure that the clients' max_kill_timeout is as long",
			"kill_timeout = %q: a Nomad client grants no more than 30s unless its max_kill_timeout says so", ShortDuration(kill))
	}
	if group.CheckpointSignal == "" {
		return
	}
	need := nomadKillTimeout + 1 // what Nomad grants unasked is not enough
	if group.Checkpoint != nil {
		need = group.Checkpoint.Timeout
	}
	switch {
	case kill >= need:
	case kill == nomadKillTimeout:
		r.warn(at, `write kill_timeout = "30s", or as long as a checkpoint takes`,
			"kill_timeout is 5s, Nomad's default: a checkpoint that takes longer is lost when the task is stopped")
	default:
		r.warn(at, "make kill_timeout longer, or the checkpoint block's timeout shorter",
			"kill_timeout = %q is shorter than the %s that a checkpoint may take: it could be lost when the task is stopped",
			ShortDuration(kill), ShortDuration(need))
	}
}

// checkTemplates warns of templates and secrets that restart the task alone when they change.
func (r *reader) checkTemplates(t target) {
	const mend = `write change_mode = "noop" or "signal"`
	for i, tmpl := range t.task.Templates {
		if tmpl == nil || or(false, tmpl.Once) || or("restart", tmpl.ChangeMode) != "restart" {
			continue
		}
		r.warn(t.at.nth("template", i).attribute("change_mode"), mend,
			"this template restarts the task when its data change, and with it the whole gang; that is Nomad's default")
	}
	if v := t.task.Vault; v != nil && or("restart", v.ChangeMode) == "restart" {
		r.warn(t.at.in("vault").attribute("change_mode"), mend,
			"a new Vault token restarts the task, and with it the whole gang; that is Nomad's default")
	}
}
