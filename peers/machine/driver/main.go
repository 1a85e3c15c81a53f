// A third-party driver with one flag of each type. Its machines consist only of a name. Installed as
// docker-machine-driver-example, rancher-machine finds it on its PATH.
package main

import (
	"github.com/rancher/machine/drivers/noop"
	"github.com/rancher/machine/libmachine/drivers"
	"github.com/rancher/machine/libmachine/drivers/plugin"
	"github.com/rancher/machine/libmachine/mcnflag"
)

type example struct{ *noop.Driver }

func (*example) DriverName() string { return "example" }

func (*example) GetCreateFlags() []mcnflag.Flag {
	return []mcnflag.Flag{
		mcnflag.StringFlag{Name: "example-region", Usage: "where it runs", EnvVar: "EXAMPLE_REGION", Value: "north"},
		mcnflag.StringFlag{Name: "example-token", Usage: "what lets us in", EnvVar: "EXAMPLE_TOKEN"},
		mcnflag.StringFlag{Name: "example-ssh-key-path", Usage: "private key"},
		mcnflag.IntFlag{Name: "example-disk-size", Usage: "in GB", EnvVar: "EXAMPLE_DISK_SIZE", Value: 20},
		mcnflag.BoolFlag{Name: "example-public", Usage: "whether it can be reached from outside"},
		mcnflag.StringSliceFlag{Name: "example-network", Usage: "networks it is in", Value: []string{"default"}},
	}
}

func (*example) SetConfigFromFlags(drivers.DriverOptions) error { return nil }

func main() {
	plugin.RegisterDriver(&example{noop.NewDriver("", "")})
}
