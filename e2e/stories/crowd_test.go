// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package stories

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// crowd: many gangs of random shapes are submitted at once, several times what the cluster holds. All finish; the checker
// says whether a GPU was ever in two slots or a gang ever partly running.
func crowd(s *stage) {
	gangs, limit := randomGangs(40, 5*28), 15*time.Minute
	if soak() {
		gangs, limit = randomGangs(400, 50*28), 40*time.Minute
	}
	// What `nomad job run` costs the machine must not be taken for the time that gangs wait: submit a few at a time.
	var group sync.WaitGroup
	turn := make(chan struct{}, 4)
	for _, g := range gangs {
		group.Add(1)
		go func() {
			defer group.Done()
			turn <- struct{}{}
			defer func() { <-turn }()
			s.submit(g)
		}()
	}
	group.Wait()

	began := time.Now()
	s.await("all gangs of the crowd to finish", limit, func() (bool, string) {
		snapshot := s.snapshot()
		states := map[string]int{}
		for _, g := range gangs {
			states[string(snapshot.Gangs[g.name].Doc.State)]++
		}
		return states["finished"] == len(gangs), fmt.Sprint(states)
	})
	s.t.Logf("%d gangs of %d GPUs together finished in %s", len(gangs), gpusOf(gangs), time.Since(began).Round(time.Second))
	for _, g := range gangs {
		s.startedOnce(s.awaitFinished(g.name, endWithin))
	}
}

// randomGangs makes n gangs that ask for at least gpus GPUs together, always the same ones.
func randomGangs(n, gpus int) []gang {
	shapes := [][2]int{{1, 1}, {1, 2}, {2, 1}, {1, 4}, {2, 2}, {4, 1}, {3, 2}, {2, 4}, {1, 8}, {5, 2}, {2, 8}, {3, 8}}
	random := rand.New(rand.NewPCG(1, uint64(n)))
	for {
		var gangs []gang
		for i := range n {
			shape := shapes[random.IntN(len(shapes))]
			gangs = append(gangs, gang{
				name: fmt.Sprintf("crowd-%02d", i), count: shape[0], gpus: shape[1], runFor: time.Duration(1+random.IntN(4)) * time.Second,
			})
		}
		if gpusOf(gangs) >= gpus {
			return gangs
		}
	}
}

func gpusOf(gangs []gang) int {
	sum := 0
	for _, g := range gangs {
		sum += g.count * g.gpus
	}
	return sum
}
