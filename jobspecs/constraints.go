// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package jobspecs

import (
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"
)

const gangAttribute = "${device.attr.gang}"

// readConstraints finds the gang constraint of a device ask, which gives the group's value, and keeps the others.
func (r *reader) readConstraints(t target, group *Group) {
	found := false
	for i, c := range t.device.Constraints {
		if c == nil {
			continue
		}
		at := t.deviceAt.nth("constraint", i)
		switch {
		case c.LTarget != gangAttribute && c.RTarget != gangAttribute:
			r.checkDeviceConstraint(at, c)
			group.DeviceConstraints = append(group.DeviceConstraints, c)
		case found:
			r.refuse(at, "keep one", "a second gang constraint in one device ask")
		default:
			found = true
			group.Value = r.readGangConstraint(at, c)
		}
	}
	if !found {
		r.refuse(t.deviceAt, fmt.Sprintf("add constraint { attribute = %q  value = %q }", gangAttribute, "<name of the gang>"),
			"the ask names no gang, so it would take a slot of any")
	}
}

// readGangConstraint gives the value of a gang constraint, or nothing if it is refused.
func (r *reader) readGangConstraint(at place, c *api.Constraint) string {
	equals := c.Operand == "=" || c.Operand == "==" || c.Operand == "is" // one and the same to Nomad
	switch {
	case c.LTarget != gangAttribute:
		r.refuse(at, fmt.Sprintf("write attribute = %q and the gang's name as value", gangAttribute),
			"the gang constraint is the wrong way round")
	case !equals:
		r.refuse(at, `write operator = "=" or leave it out`,
			"operator %q in the gang constraint: only one gang's slots can be asked for", c.Operand)
	case strings.Contains(c.RTarget, "${"):
		r.refuse(at.attribute("value"), "write the name itself, or an HCL variable (value = var.gang)",
			"the gang's name %q is not a literal: Nomad fills in nothing in a device constraint", c.RTarget)
	case c.RTarget == "":
		r.refuse(at.attribute("value"), `write a name such as "resnet50"`, "the gang constraint names no gang")
	default:
		return c.RTarget
	}
	return ""
}

// checkDeviceConstraint finds constraints beside the gang's that would keep a member from its slot.
func (r *reader) checkDeviceConstraint(at place, c *api.Constraint) {
	for _, target := range []string{c.LTarget, c.RTarget} {
		switch target {
		case "${device.ids}":
			r.warn(at, "remove it, or choose by model and memory",
				"${device.ids} of a slot are <GPU UUID>@<reservation>: a constraint on plain UUIDs never matches")
		case "${device.attr.rank}", "${device.attr.reservation}", "${device.attr.rev}":
			r.refuse(at, "remove the constraint", "%s is given by the placer when it grants the slot: a job that asks for one waits for ever", target)
		}
	}
}

// nameGang reads the gang's name out of the groups' values. One group says "<gang>"; several say "<gang>/<group>" each,
// since Nomad would otherwise mix their slots.
func (r *reader) nameGang(gang *Gang, targets []target) {
	for i, group := range gang.Groups {
		if group.Value == "" {
			continue // refused already
		}
		at := r.valueAt(targets[i])
		gangName, groupName, named := strings.Cut(group.Value, "/")
		if err := CheckName(gangName); err != nil {
			r.refuse(at, `write a name such as "resnet50"`, "%q can't name a gang: %s", shown(gangName), err)
			continue
		}
		if gang.Name == "" {
			gang.Name = gangName
		}
		switch {
		case gangName != gang.Name:
			r.refuse(at, fmt.Sprintf("write %q, or make two jobs of it", gang.Name+"/"+group.Name),
				"the groups of one job form one gang, but this one names %s and another %s", gangName, gang.Name)
		case !named && len(gang.Groups) > 1:
			r.refuse(at, fmt.Sprintf("write %q", gangName+"/"+group.Name),
				"several groups form gang %s, so each must name itself, or Nomad mixes their slots", gangName)
		case named && groupName != group.Name:
			r.refuse(at, fmt.Sprintf("write %q", gangName+"/"+group.Name),
				"value %q names group %q, but stands in group %q", group.Value, groupName, group.Name)
		case named:
			r.checkGroupName(at, group.Name)
		}
	}
}

func (r *reader) checkGroupName(at place, groupName string) {
	if err := CheckName(groupName); err != nil {
		r.refuse(at, "rename the group", "%q can't name a group of a gang: %s", groupName, err)
	}
}

// valueAt is where a group's gang constraint says its value.
func (r *reader) valueAt(t target) place {
	for i, c := range t.device.Constraints {
		if c != nil && c.LTarget == gangAttribute {
			return t.deviceAt.nth("constraint", i).attribute("value")
		}
	}
	return t.deviceAt
}
