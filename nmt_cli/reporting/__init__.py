"""Reports about runs, models and the machine: `nmt report`, `nmt doctor`, `nmt attend` and `nmt env`."""
