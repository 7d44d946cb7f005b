// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

// Package ledger holds the documents in Consul that say who has which GPUs, and the transactions that change them.
// It decides nothing about who should get GPUs: it makes sure that whatever the leader decides happens whole or not
// at all, that nobody but the leader changes slots, and that a start is a claim that no two tasks can both win. The
// placer, the device plugin and the task driver all speak to one another through it, and only through it; it imports
// nothing of ours but the plain values of driver/gpu.
//
// The keys, below muster/<region>/, and who writes each:
//
//	leader                              placers, by session lock
//	epoch                               placer, once
//	nodes/<node>                        device plugin, held by its session
//	health/<node>                       device plugin
//	slots/<node>                        leading placer, check-and-set
//	claims/<node>/<reservation>.<rank>  that node's driver or plugin; removed by force with their slots
//	acks/<node>                         device plugin
//	gangs/<gang>                        leading placer, check-and-set in each transaction about the gang
//	refusals/<namespace>/<job>          leading placer
//	orders/<gang>                       operators' commands; the leading placer answers and removes them
//	queues                              operators' commands, check-and-set
//	usage                               leading placer
//	runs/<gang>/<reservation>           rank 0's driver
//	runs/<gang>/<reservation>/members/<rank>  that member's driver
package ledger
