package projection
import ("testing";"unsafe")
func TestSize(t *testing.T){ var s scanner; t.Log(unsafe.Sizeof(s), unsafe.Sizeof(frame{}), unsafe.Sizeof(entry{}), unsafe.Sizeof(s.stack0), unsafe.Sizeof(s.memory0), unsafe.Sizeof(s.buf), unsafe.Sizeof(s.memory)) }
