// Package functions holds no code: its folders are the Lambda functions, each a main of a few
// lines, and its tests are those of template.yaml and of the functions' binaries.
package functions
