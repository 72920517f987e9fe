#!/usr/bin/env bash
# The documentation as a site, from docs/, README.md and the docstrings; see mkdocs.yml.
#
#   scripts/site.sh build              into build/site; fails if a link, picture or name is missing
#   scripts/site.sh serve [OPTION...]  on http://127.0.0.1:8000, built again with every change
#   scripts/site.sh publish [VERSION]  commits it to the local branch gh-pages, beside the other
#                                      versions, as the latest; default: the package's version
#
# SITE_URL and REPOSITORY_URL are the addresses of the published site and of the repository, if any.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$root"

make_environment docs
export NO_MKDOCS_2_WARNING=1
PATH=$(dirname "$python"):$PATH # mike calls mkdocs

case ${1:-build} in
  build) "$python" -m mkdocs build --strict && say "build/site/index.html" ;;
  serve) "$python" -m mkdocs serve "${@:2}" ;;
  publish)
    version=${2:-$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' vit_jax/core/__init__.py)}
    "$python" -m mkdocs build --strict # mike does not ask for it
    mike deploy --update-aliases "$version" latest
    mike set-default latest
    say "$version is on the branch gh-pages: git push REMOTE gh-pages"
    ;;
  *) die "scripts/site.sh build, serve or publish; not $1." ;;
esac
