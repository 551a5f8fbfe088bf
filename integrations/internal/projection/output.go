package projection

const (
	chunkBits = 12
	chunk     = 1 << chunkBits
)

// output is the picked JSON while it is being written. It is kept in chunks,
// so that it neither moves while it grows nor has to be guessed in advance.
// Storing stops at the first piece that does not fit, counting goes on.
type output struct {
	max    int
	chunks [][]byte
	cur    []byte // the chunk being written
	at     int    // next byte in it
	room   int    // bytes of it that may be written, -1 if storing has stopped
	before int    // size of the output without the bytes in cur
	stored int    // size at which storing stopped

	chunks0 [defaultOut / chunk][]byte
}

func (o *output) reset(max int) {
	o.max = max
	if o.chunks == nil {
		o.chunks = o.chunks0[:0]
	}
	o.cur, o.at, o.room, o.before = nil, 0, 0, 0
}

func (o *output) shrink() {
	o.cur = nil
	if len(o.chunks) > 2*len(o.chunks0) {
		o.chunks = nil
	}
}

func (o *output) size() int { return o.before + o.at }

// bytes returns a copy of the output, nil if there is none or not all of it.
func (o *output) bytes() []byte {
	size := o.size()
	if size == 0 || o.room < 0 {
		return nil
	}
	b := make([]byte, size)
	for n, i := 0, 0; n < size; i++ {
		n += copy(b[n:], o.chunks[i])
	}
	return b
}

func (o *output) put(b []byte) {
	if at := o.at + len(b); at <= o.room {
		copy(o.cur[o.at:], b)
		o.at = at
		return
	}
	o.putSlow(b)
}

func (o *output) putByte(c byte) {
	if o.at < o.room {
		o.cur[o.at] = c
		o.at++
		return
	}
	o.putSlow([]byte{c})
}

func (o *output) putSlow(b []byte) {
	if o.room >= 0 && o.size()+len(b) > o.max {
		o.room, o.stored = -1, o.size()
	}
	if o.room < 0 {
		o.before += len(b)
		return
	}
	for {
		n := copy(o.cur[o.at:], b)
		o.at += n
		if b = b[n:]; len(b) == 0 {
			return
		}
		o.open(o.size())
	}
}

// open makes the chunk current that holds the byte at size.
func (o *output) open(size int) {
	i := size >> chunkBits
	if i == len(o.chunks) {
		o.grow()
	}
	o.cur = o.chunks[i]
	o.at = size & (chunk - 1)
	o.before = size - o.at
	o.room = min(chunk, o.max-o.before)
}

// grow doubles the number of chunks.
func (o *output) grow() {
	n := len(o.chunks) + 1
	n = max(1, min(n, defaultOut/chunk, o.max>>chunkBits-len(o.chunks)))
	block := make([]byte, n*chunk)
	for ; len(block) > 0; block = block[chunk:] {
		o.chunks = append(o.chunks, block[:chunk:chunk])
	}
}

// cut takes the output back to an earlier size.
func (o *output) cut(size int) {
	if o.room < 0 && size > o.stored {
		o.before = size - o.at
		return
	}
	o.open(size)
}
