// Prints the create flags of drivers as JSON, as reported by the plugins: their help output omits the defaults of lists
// and does not distinguish numbers from strings. Drivers are looked up on the PATH, as rancher-machine does.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/rpc"
	"os"

	"github.com/rancher/machine/libmachine/drivers/plugin/localbinary"
	rpcdriver "github.com/rancher/machine/libmachine/drivers/rpc"
	"github.com/rancher/machine/libmachine/log"
	"github.com/rancher/machine/libmachine/mcnflag"
)

type flag struct {
	Name    string `json:"name"`
	Usage   string `json:"usage"`
	Type    string `json:"type"`
	Default any    `json:"default"`
	Env     string `json:"env"`
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--list" {
		json.NewEncoder(os.Stdout).Encode(localbinary.CoreDrivers)
		return
	}
	log.SetOutWriter(io.Discard) // plugin output would mix with the JSON
	found := map[string][]flag{}
	for _, driver := range os.Args[1:] {
		flags, err := flagsOf(driver)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", driver, err)
			os.Exit(1)
		}
		found[driver] = flags
	}
	json.NewEncoder(os.Stdout).Encode(found)
}

func flagsOf(driver string) ([]flag, error) {
	plugin, err := localbinary.NewPlugin(driver)
	if err != nil {
		return nil, err
	}
	go plugin.Serve()
	address, err := plugin.Address()
	if err != nil {
		return nil, err
	}
	connection, err := rpc.DialHTTP("tcp", address)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	client := rpcdriver.NewInternalClient(connection)
	var reported []mcnflag.Flag
	if err := client.Call(rpcdriver.GetCreateFlagsMethod, struct{}{}, &reported); err != nil {
		return nil, err
	}
	client.Call(rpcdriver.CloseMethod, struct{}{}, nil)
	flags := []flag{}
	for _, one := range reported {
		switch f := one.(type) {
		case *mcnflag.StringFlag:
			flags = append(flags, flag{f.Name, f.Usage, "string", f.Value, f.EnvVar})
		case *mcnflag.IntFlag:
			flags = append(flags, flag{f.Name, f.Usage, "int", f.Value, f.EnvVar})
		case *mcnflag.BoolFlag:
			flags = append(flags, flag{f.Name, f.Usage, "bool", false, f.EnvVar})
		case *mcnflag.StringSliceFlag:
			flags = append(flags, flag{f.Name, f.Usage, "list", append([]string{}, f.Value...), f.EnvVar})
		default:
			return nil, fmt.Errorf("flag %s has a type that is not known here: %T", one, one)
		}
	}
	return flags, nil
}
