# usage: zsh -f check_completion.zsh LORRY: zsh completes at a terminal alone, so it is given one. The reads end with their
# pattern, or with the test's deadline.
zmodload zsh/zpty
zpty shell "TERM=vt100 zsh -f -i"
zpty -w shell "PS1= PS2=; source <($1 completion zsh); echo REA\"\"DY"
zpty -r -m shell seen "*READY*"
zpty -n -w shell "lorry publish --wait serv"$'\t'
zpty -r -m shell seen "*--wait serving*"
zpty -d shell
