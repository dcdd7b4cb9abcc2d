"""The gateway image: units, provisioning, packages. Whole builds and boots are `make image-test`."""
