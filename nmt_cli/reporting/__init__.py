"""Reports about runs and models: the HTML report, the doctor, attention pages and `nmt env`."""
