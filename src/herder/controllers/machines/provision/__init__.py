"""machineprovision: Jobs that create and remove the machines of drivers, and what is known of them."""
