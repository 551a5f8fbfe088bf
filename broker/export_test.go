package broker

import "github.com/elevenmessenger/connect/custody"

// SealFlows seals the same flow n times and returns the cookies' values.
func (b *Broker) SealFlows(n int) ([]string, error) {
	k, err := custody.NewIdentity()
	if err != nil {
		return nil, err
	}
	f := &flow{Handle: random(16), Service: "acme", Key: k.Public()}
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

// FlowUnderWrap seals a whole flow as sealFlow does, but with the keys of refresh tokens.
func (b *Broker) FlowUnderWrap() (handle, value string, err error) {
	k, err := custody.NewIdentity()
	if err != nil {
		return "", "", err
	}
	other := &Broker{cfg: b.cfg, state: b.wrap}
	f := &flow{Handle: random(16), Service: "acme", Key: k.Public(), Begun: b.cfg.Now().Unix()}
	value, err = other.sealFlow(f)
	return f.Handle, value, err
}

// ParseOrigin is parseOrigin.
var ParseOrigin = parseOrigin
