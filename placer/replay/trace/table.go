// Copyright (c) The Muster Authors
// SPDX-License-Identifier: MPL-2.0

package trace

import (
	"bufio"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// table is a CSV file with a header line.
type table struct {
	header []string
	rows   []row
}

// row is one line. The first fault of any of its numbers is kept in err, so that a reader need not ask after each.
type row struct {
	line    int
	columns map[string]int
	fields  []string
	err     *error
}

func readTable(r io.Reader) (*table, error) {
	buffered := bufio.NewReader(r)
	var in io.Reader = buffered
	if magic, err := buffered.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		if in, err = gzip.NewReader(buffered); err != nil {
			return nil, err
		}
	}
	reader := csv.NewReader(in)
	reader.TrimLeadingSpace = true
	reader.Comment = '#'
	header, err := reader.Read()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("the file is empty")
	}
	if err != nil {
		return nil, err
	}
	t := &table{header: header}
	columns := make(map[string]int, len(header))
	for i, name := range header {
		t.header[i] = strings.TrimSpace(name)
		columns[t.header[i]] = i
	}
	for {
		fields, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return nil, err
		}
		line, _ := reader.FieldPos(0)
		t.rows = append(t.rows, row{line: line, columns: columns, fields: fields, err: new(error)})
	}
}

func (t *table) has(names ...string) bool {
	for _, name := range names {
		if !slices.Contains(t.header, name) {
			return false
		}
	}
	return true
}

// text returns a field; empty if there is no such column.
func (r row) text(column string) string {
	i, known := r.columns[column]
	if !known {
		return ""
	}
	return strings.TrimSpace(r.fields[i])
}

// number returns a field as a number; 0 if it is empty or there is no such column.
func (r row) number(column string) int64 {
	text := r.text(column)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil && *r.err == nil {
		*r.err = fmt.Errorf("%s is %q, not a whole number", column, text)
	}
	return n
}
