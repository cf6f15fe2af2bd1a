# Each target installs what it needs by itself; see scripts/requirements.bash.

.DEFAULT_GOAL := help
.PHONY: help run install test test-differential fuzz simulate test-oracle test-copy test-zookeeper-programs test-files bench-zookeeper bench-primitives bench-transactions bench-scaling bench-workflows bench-erasure bench-memory bench-validation bench-files

help: ## Lists these targets
	@grep -E '^[a-z-]+:.* ## ' Makefile | sed 's/:.* ## /\t/' | expand -t 20

run: ## Builds and starts Landfast, shows a tour with real clients, stays until Ctrl-C
	@scripts/run

install: ## Installs the program into PREFIX/bin, and its preload library into PREFIX/lib (default: ~/.cargo)
	@PREFIX=$(PREFIX) scripts/install

test: ## Runs everything CI runs
	@scripts/test

test-differential: ## Runs handlers under the bundled runtime clients and under Lambda's own, and compares them
	@scripts/test-differential $(ARGUMENTS)

fuzz: ## Fuzzes the decoders, guided by coverage, SECONDS_EACH (default 60) each of TARGETS (default all)
	@SECONDS_EACH=$(SECONDS_EACH) TARGETS="$(TARGETS)" scripts/fuzz

simulate: ## Runs every simulated scenario under SEEDS seeds (default 1000; several transaction nodes: NODES_SEEDS, default 20)
	@SEEDS=$(SEEDS) scripts/simulate

test-oracle: ## Runs the client tests against a real ZooKeeper instead (UPDATE=1 records its answers)
	@scripts/test-oracle

test-copy: ## Copies ZNODES (default 100000) znodes between a real ZooKeeper and Landfast, both ways
	@ZNODES=$(ZNODES) scripts/test-copy

test-files: ## Runs pjdfstest and fsx on a mount of a volume (root)
	@scripts/test-files

test-zookeeper-programs: ## Runs programs that need a ZooKeeper (PROGRAMS, default all: clients kazoo kafka clickhouse solr)
	@scripts/test-zookeeper-programs $(PROGRAMS)

bench-zookeeper: ## Measures Landfast beside Apache ZooKeeper (ARGUMENTS="--help" for more)
	@scripts/bench-zookeeper $(ARGUMENTS)

bench-primitives: ## Measures the synchronisation primitives on each provider
	@scripts/bench-primitives $(ARGUMENTS)

bench-transactions: ## Measures transactions beside plain Redis, and on the embedded store
	@scripts/bench-transactions $(ARGUMENTS)

bench-scaling: ## Measures 1 to 64 transaction nodes on one simulated store, in virtual time
	@scripts/bench-scaling $(ARGUMENTS)

bench-workflows: ## Measures workflows and functions: near, over a distant store, and beside Restate
	@scripts/bench-workflows $(ARGUMENTS)

bench-erasure: ## Measures the erasure code beside reads and copies of memory
	@scripts/bench-erasure $(ARGUMENTS)

bench-memory: ## Measures objects over S3 beside Redis and other S3 servers
	@scripts/bench-memory $(ARGUMENTS)

bench-validation: ## Measures validation of proposals to a volume on one core, without I/O
	@scripts/bench-validation $(ARGUMENTS)

bench-files: ## Measures files on mounts beside ext4 and GlusterFS
	@scripts/bench-files $(ARGUMENTS)
