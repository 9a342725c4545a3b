# Everyday commands. `just` lists them; each is one plain command that also works without just.

# list the commands
default:
    @just --list

# answer one prompt, or chat when there is none
run *arguments:
    cargo run --release -- run {{arguments}}

# everything that must pass before a change goes in
test:
    cargo xtask test

# the same, and the slow tests
test-long:
    cargo xtask test --long

# some stages only: just only fmt,clippy
only stages:
    cargo xtask test --only {{stages}}

# the tests of one crate: just crate compute attention
crate name *filter:
    cargo test --package millstream-{{name}} {{filter}}

# format everything
fmt:
    cargo fmt --all

# lints, as the tests run them
lint:
    cargo clippy --workspace --all-targets -- -D warnings

# rules of the house that no compiler checks
tidy:
    cargo xtask tidy

# the library documentation, in a browser
doc:
    cargo doc --workspace --no-deps --open

# write docs/reference anew
reference:
    cargo xtask reference

# measure the built-in model, or another
bench model="pebble" *arguments:
    cargo run --release -- bench {{model}} {{arguments}}

# licences, advisories, spelling (cargo install cargo-deny typos-cli)
audit:
    cargo deny check
    typos
