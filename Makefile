# Makefile - builds and installs zklock with PostgreSQL's own build system (PGXS).
#
#   make && sudo make install
#   make PG_CONFIG=/usr/lib/postgresql/17/bin/pg_config     # another server
#   make CC=clang-14 COPT=-Werror                           # another compiler
#   make with_llvm=no                                       # no bitcode for the JIT
#
#   make check                                              # all tests: test/run
#   make prove_installcheck PROVE_TESTS=test/t/001_exclusion.pl
#   make dist                                               # the last commit as zklock-VERSION.zip
#
# What tests the result is test/run, with servers of its own. `make installcheck` runs the regression tests
# in a server that is there already (PGHOST, PGPORT, PGUSER), with the library preloaded and a
# ZooKeeper, with max_prepared_transactions above 0, as a superuser. `make prove_installcheck` runs the
# TAP tests (PROVE_TESTS; all unless set) on servers of their own with what `make install` has installed.

# test/run installs what is missing, PostgreSQL included. So these two do without PGXS.
ifeq (,$(filter-out check dist, $(or $(MAKECMDGOALS), all)))

here := $(dir $(firstword $(MAKEFILE_LIST)))
distribution = zklock-$(shell sed -n 's/^   "version": "\(.*\)",$$/\1/p' $(here)META.json)

check:
	$(here)test/run

dist:
	git -C $(here) archive --format=zip --prefix=$(distribution)/ --output=$(abspath $(here))/$(distribution).zip HEAD
	@echo $(distribution).zip

.PHONY: check dist

else

MODULE_big = zklock
OBJS = $(patsubst $(srcdir)/%.c,%.o,$(sort $(wildcard $(srcdir)/src/*.c $(srcdir)/src/*/*.c)))

EXTENSION = zklock
# The control file is the only place that holds the version.
EXTVERSION := $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" $(dir $(firstword $(MAKEFILE_LIST)))zklock.control)
DATA = $(patsubst $(srcdir)/%,%,$(wildcard $(srcdir)/sql/zklock--*--*.sql))
DATA_built = sql/zklock--$(EXTVERSION).sql
PGFILEDESC = "zklock - distributed locks on ZooKeeper"

# Every expected output is a test; name_1.out is an alternative, not a test.
REGRESS = $(filter-out %_1 %_2, $(sort $(patsubst expected/%.out, %, $(wildcard expected/*.out))))
REGRESS_OPTS = --load-extension=zklock

# THREADED selects the half of zookeeper.h that libzookeeper_mt implements.
PG_CPPFLAGS = -I$(srcdir)/src -DTHREADED -DZKLOCK_VERSION=\"$(EXTVERSION)\"
# assert() is for the files that do not know PostgreSQL's Assert(), and means the same: it is
# checked where Assert() is, in a build with USE_ASSERT_CHECKING, and in the unit tests.
ifeq (,$(findstring USE_ASSERT_CHECKING,$(COPT) $(CPPFLAGS) $(CFLAGS) $(PROFILE)))
PG_CPPFLAGS += -DNDEBUG
endif
# Hidden by default: PostgreSQL has said so itself only since version 16, and the
# client library's symbols must never meet one of ours.
PG_CFLAGS = -fvisibility=hidden -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Wwrite-strings -Wstrict-prototypes
SHLIB_LINK = -lzookeeper_mt

EXTRA_CLEAN = src/.have-zookeeper sql/zklock--$(EXTVERSION).sql test/build tmp_check

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)
ifeq ($(wildcard $(PGXS)),)
$(error PostgreSQL's server headers are missing: install postgresql-server-dev-NN (NN is the server's major version) or set PG_CONFIG)
endif
include $(PGXS)

# PostgreSQL hands the flags of the compiler it was built with (gcc) to clang too;
# what clang says about them is not about this code.
ifneq (,$(findstring clang, $(shell $(CC) --version 2>/dev/null)))
override CFLAGS += -Wno-unknown-warning-option -Wno-ignored-optimization-argument -Wno-ignored-attributes
endif

# PGXS knows nothing of headers; with so few files all depend on all.
$(OBJS) $(OBJS:.o=.bc): $(wildcard $(srcdir)/src/*.h $(srcdir)/src/*/*.h)

# Asked once, before the first file is compiled: a missing client library is
# said in one sentence and not in a page of errors.
$(OBJS) $(OBJS:.o=.bc): | src/.have-zookeeper

src/.have-zookeeper:
	@mkdir -p $(sort $(dir $(OBJS)))
	@printf '%s\n' '#include <zookeeper/zookeeper.h>' 'int main(void) { return zoo_state((zhandle_t *) 0); }' | \
		$(CC) $(CPPFLAGS) -x c - -o $@ $(LDFLAGS) $(SHLIB_LINK) >/dev/null 2>&1 || \
		{ echo "zklock needs ZooKeeper's C client (zookeeper/zookeeper.h and libzookeeper_mt): install the package libzookeeper-mt-dev" >&2; exit 1; }

sql/zklock--$(EXTVERSION).sql: sql/zklock.sql zklock.control
	@mkdir -p $(@D)
	cp $< $@

# Said in one sentence, and not in the differences of every test.
installcheck: ready-for-installcheck
.PHONY: ready-for-installcheck
ready-for-installcheck:
	@PGCONNECT_TIMEOUT=10 PSQL='$(bindir)/psql' sh $(srcdir)/test/ready

# The TAP tests, by the rule that PGXS has for them, which differs from version to version. Their files
# and their modules lie below test/.
PROVE_TESTS ?= $(patsubst $(srcdir)/%,%,$(sort $(wildcard $(srcdir)/test/t/*.pl)))
PG_PROVE_FLAGS += -I $(srcdir)/test/perl
prove_installcheck: export PGCONFIG = $(PG_CONFIG)
prove_installcheck: ready-for-prove
	$(prove_installcheck)

ready-for-prove:
	@[ "$$(id -u)" != 0 ] || { echo "PostgreSQL does not run as root: become another user, for whom this directory can be written" >&2; exit 1; }
	@[ -f '$(DESTDIR)$(pkglibdir)/zklock.so' ] || { echo "zklock is not installed in $(pkglibdir): make install" >&2; exit 1; }

.PHONY: prove_installcheck ready-for-prove

endif
