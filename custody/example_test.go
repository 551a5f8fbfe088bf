package custody_test

import (
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// A message goes from one key to another; whoever carries it learns its header and length.
func ExampleIdentity_Seal() {
	ada, bot := identity(), identity()

	header := custody.Header{Purpose: custody.PurposeSay, Space: "home", Thread: "kitchen"}
	envelope, err := ada.Seal(bot.Public(), nil, header, []byte("hello"))
	if err != nil {
		log.Fatal(err)
	}

	plaintext, err := bot.Open(envelope, ada.Public(), nil)
	fmt.Printf("%s %v\n", plaintext, err)

	envelope.Thread = "cellar"
	_, err = bot.Open(envelope, ada.Public(), nil)
	fmt.Println(err)
	// Output:
	// hello <nil>
	// not from the key that it names
}

// A member taps one sentence, and one bot may run that operation once.
func ExampleMintGrant() {
	ada, bot := identity(), identity()
	registry, err := integrations.Default()
	if err != nil {
		log.Fatal(err)
	}
	github := registry.Get("github")
	call, err := github.Bind("open_issue", integrations.Args{"owner": "octo", "repo": "hello", "title": "It is broken"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(call.Sentence().Text)

	connection := &custody.Credential{
		V: 1, ID: "c1", Service: "github", Kind: custody.KindPAT, Secret: integrations.NewSecret("github_pat_x"), Cap: integrations.Read,
	}
	request := custody.GrantRequest{Use: custody.UseOnce, Call: call}
	_, err = custody.MintGrant(github, connection, request, time.Now())
	fmt.Println(err)

	connection.Cap = integrations.Write
	grant, err := custody.MintGrant(github, connection, request, time.Now())
	if err != nil {
		log.Fatal(err)
	}
	op := custody.NewID()
	envelope, err := grant.Seal(ada, bot.Public(), nil, "home", "kitchen", op)
	if err != nil {
		log.Fatal(err)
	}

	// At the bot's sidecar.
	opened, err := custody.OpenGrant(bot, envelope, ada.Public(), nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(opened.Use, opened.Access, opened.Exp-opened.IAT, opened.Secret, opened.Allows(call))
	other, err := github.Bind("open_issue", integrations.Args{"owner": "octo", "repo": "world", "title": "It is broken"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(errors.Is(opened.Allows(other), custody.ErrConsent))
	// Output:
	// Open the issue “It is broken” in octo/hello?
	// beyond what the connection or grant allows: this connection is read-only
	// once write 120 [secret] <nil>
	// true
}

// A rotated pair is taken only from whoever held the stored one.
func ExampleCredential_Take() {
	stored := integrations.NewSecret("rt1.k1.c3RvcmVk")
	connection := &custody.Credential{
		V: 1, ID: "c1", Pair: 3, Service: "practice", Kind: custody.KindOAuth, Secret: integrations.NewSecret("old"),
		Refresh: stored, Broker: "https://connect.example.com",
	}
	handback := &custody.Handback{
		V: 1, Credential: "c1", Pair: 4, Secret: integrations.NewSecret("new"), Refresh: integrations.NewSecret("rt1.k1.ZnJlc2g"), ObtainedAt: 1790000000,
	}
	if err := handback.Sign(stored); err != nil {
		log.Fatal(err)
	}
	next, err := connection.Take(handback)
	fmt.Println(next.Pair, next.Generation, err)

	_, err = next.Take(handback)
	fmt.Println(err)

	handback.Pair = 5
	if err := handback.Sign(integrations.NewSecret("rt1.k1.Z3Vlc3NlZA")); err != nil {
		log.Fatal(err)
	}
	_, err = next.Take(handback)
	fmt.Println(err)
	// Output:
	// 4 1 <nil>
	// older than what this device has seen
	// not from the key that it names: the hand-back was not made with the pair that is stored
}

// The instance that stores the blobs cannot bring back an older one.
func ExampleMemory() {
	memory := make(custody.Memory)
	lowered := &custody.Credential{ID: "c1", Generation: 2, Cap: integrations.Read}
	before := &custody.Credential{ID: "c1", Generation: 1, Cap: integrations.Write}
	fmt.Println(memory.See(lowered))
	fmt.Println(memory.See(before))
	// Output:
	// <nil>
	// older than what this device has seen: generation 1 and pair 0, after 2 and 0
}

func identity() *custody.Identity {
	i, err := custody.NewIdentity()
	if err != nil {
		log.Fatal(err)
	}
	return i
}
