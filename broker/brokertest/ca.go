package brokertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"sync"
	"time"
)

// A CA vouches for whatever name is asked of it: with [broker.Config].ConnectTo, a fake may
// stand in for any provider, and TLS is checked all the same.
type CA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey

	mu   sync.Mutex
	made map[string]*tls.Certificate
}

// sharedCA is one for the whole process: keys cost time.
var sharedCA = sync.OnceValues(newCA)

func newCA() (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "brokertest"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &CA{cert: cert, key: key, made: make(map[string]*tls.Certificate)}, nil
}

// Pool returns the CA as roots.
func (ca *CA) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(ca.cert)
	return p
}

// PEM returns the CA's certificate, for a peer that is not Go.
func (ca *CA) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
}

// TLS returns a server's configuration.
func (ca *CA) TLS() *tls.Config {
	return &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return ca.Certificate(h.ServerName) }}
}

// Certificate returns one for a host name.
func (ca *CA) Certificate(name string) (*tls.Certificate, error) {
	if name == "" {
		return nil, errors.New("brokertest: the client names no host")
	}
	ca.mu.Lock()
	defer ca.mu.Unlock()
	if c := ca.made[name]; c != nil {
		return c, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(int64(len(ca.made) + 2)), Subject: pkix.Name{CommonName: "brokertest leaf"}, DNSNames: []string{name},
		NotBefore: ca.cert.NotBefore, NotAfter: ca.cert.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca.cert, key.Public(), ca.key)
	if err != nil {
		return nil, err
	}
	c := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	ca.made[name] = c
	return c, nil
}
