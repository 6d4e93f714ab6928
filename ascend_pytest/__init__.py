"""pytest's fixture `ascend`: compiles a Triton kernel for Ascend, executes the compiled code, and fails the test
on anything that is wrong with it.  This package, and a test run that does not use the fixture, load nothing."""
