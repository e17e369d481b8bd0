"""What a type checker must say to a user of the installed client; never run."""

import lorry

with lorry.open_run("policy", store="store") as run:
    served: lorry.Serving = run.publish({}, version=1).wait("serving")
    run.publish({}, version=2).wait("srving")  # an error
    run.publish({}, "2")  # an error
lorry.Admin(token="t").set_policy("policy", {"keep": 2})
lorry.Admin(tokn="t")  # an error
lorry.Admin("store", "orchestrator", "token")  # an error
lorry.open_run("policy", cert="a.pem")  # an error
lorry.publish("policy")  # an error
