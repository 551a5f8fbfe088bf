package broker

// SealFlows seals the same flow n times and returns the cookies' values.
func (b *Broker) SealFlows(n int) ([]string, error) {
	f := &flow{Handle: random(16), Service: "acme"}
	out := make([]string, n)
	for i := range out {
		v, err := b.sealFlow(f)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

// OpensAsFlow says whether a wrapped refresh token opens as a flow's record, under any of
// the names that it could carry.
func (b *Broker) OpensAsFlow(handle, value string) bool {
	_, err := b.openFlow(handle, value)
	return err == nil
}

// ParseOrigin is parseOrigin.
var ParseOrigin = parseOrigin
