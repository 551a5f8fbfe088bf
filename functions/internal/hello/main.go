// Command hello is a function that says hello: what the size and the start of the others are
// measured against.
package main

import (
	"context"
	"encoding/json"
	"github.com/aws/aws-lambda-go/lambda"
)

type resp struct {
	StatusCode int    `json:"statusCode"`
	Body       string `json:"body"`
}

func main() {
	lambda.Start(func(ctx context.Context, ev json.RawMessage) (resp, error) { return resp{200, "hello, world"}, nil })
}
