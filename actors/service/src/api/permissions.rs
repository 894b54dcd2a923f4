//! Who may use which path: one table, and functions of it. Pure.

use ragstone_storage::catalog::Role;

use crate::config::KeyMode;

/// What somebody is, and what a path wants. Each may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rank {
    /// Whoever reaches the port.
    Anyone,
    /// A key that reads.
    Read,
    /// A key that also adds and deletes what is its tenant's.
    Write,
    /// A key that looks after the service, for every tenant.
    Admin,
    /// Who can read the data folder: files of this machine, and the keys themselves.
    Owner,
}

impl From<Role> for Rank {
    fn from(role: Role) -> Self {
        match role {
            Role::Read => Self::Read,
            Role::Write => Self::Write,
            Role::Admin => Self::Admin,
        }
    }
}

/// What a path wants of whoever uses it with a method.
#[derive(Debug)]
pub struct Rule {
    /// The method.
    pub method: &'static str,
    /// As the router has it.
    pub path: &'static str,
    /// Without keys: [`Rank::Anyone`] or [`Rank::Owner`].
    pub without_keys: Rank,
    /// With keys.
    pub with_keys: Rank,
    /// It has a model read or write tokens: a tenant that has used up its own asks it nothing, and a proxy may ask another node again.
    pub asks: bool,
}

const fn rule(method: &'static str, path: &'static str, without_keys: Rank, with_keys: Rank) -> Rule {
    Rule { method, path, without_keys, with_keys, asks: false }
}

/// A path that asks the model.
const fn asking(path: &'static str) -> Rule {
    Rule { asks: true, ..rule("POST", path, Anyone, Read) }
}

use Rank::{Admin, Anyone, Owner, Read, Write};

/// Where `metrics_open` counts.
const METRICS: &str = "/metrics";

/// Every path with every method. `tests/it/keys.rs` compares it with the router.
pub const RULES: &[Rule] = &[
    rule("GET", "/", Anyone, Anyone),
    rule("HEAD", "/", Anyone, Anyone),
    rule("GET", "/page/{name}", Anyone, Anyone),
    rule("HEAD", "/page/{name}", Anyone, Anyone),
    // What the surface is like is no secret.
    rule("GET", "/openapi.json", Anyone, Anyone),
    rule("GET", "/healthz", Anyone, Anyone),
    rule("GET", "/health", Anyone, Anyone),
    rule("GET", "/readyz", Anyone, Anyone),
    rule("GET", METRICS, Anyone, Admin),
    asking("/v1/chat/completions"),
    asking("/v1/completions"),
    rule("POST", "/tokenize", Anyone, Read),
    rule("POST", "/detokenize", Anyone, Read),
    rule("GET", "/tokenizer_info", Anyone, Read),
    asking("/v1/responses"),
    // Who knows an id, which nobody guesses, may use it; which there are is a tenant's own, or the owner's.
    rule("GET", "/v1/responses/{response}", Anyone, Read),
    rule("DELETE", "/v1/responses/{response}", Anyone, Read),
    rule("GET", "/v1/responses/{response}/input_items", Anyone, Read),
    rule("POST", "/v1/responses/{response}/cancel", Anyone, Read),
    rule("GET", "/v1/conversations", Owner, Read),
    rule("POST", "/v1/conversations", Anyone, Read),
    rule("GET", "/v1/conversations/{conversation}", Anyone, Read),
    rule("POST", "/v1/conversations/{conversation}", Anyone, Read),
    rule("DELETE", "/v1/conversations/{conversation}", Anyone, Read),
    rule("GET", "/v1/conversations/{conversation}/turns", Anyone, Read),
    rule("GET", "/v1/conversations/{conversation}/items", Anyone, Read),
    rule("POST", "/v1/conversations/{conversation}/items", Anyone, Read),
    rule("GET", "/v1/conversations/{conversation}/items/{item}", Anyone, Read),
    rule("DELETE", "/v1/conversations/{conversation}/items/{item}", Anyone, Read),
    asking("/v1/messages"),
    rule("POST", "/v1/messages/count_tokens", Anyone, Read),
    asking("/api/chat"),
    asking("/api/generate"),
    rule("POST", "/api/embed", Anyone, Read),
    rule("POST", "/api/embeddings", Anyone, Read),
    rule("GET", "/api/tags", Anyone, Read),
    rule("GET", "/api/ps", Anyone, Read),
    rule("POST", "/api/show", Anyone, Read),
    rule("GET", "/api/version", Anyone, Anyone),
    rule("POST", "/v1/embeddings", Anyone, Read),
    asking("/v1/rerank"),
    asking("/v2/rerank"),
    asking("/v1/score"),
    asking("/score"),
    rule("GET", "/props", Anyone, Read),
    rule("GET", "/slots", Owner, Admin),
    rule("GET", "/v1/models", Anyone, Read),
    rule("GET", "/v1/models/{model:.+}", Anyone, Read),
    rule("GET", "/v1/collections", Anyone, Read),
    rule("DELETE", "/v1/collections/{collection}", Owner, Write),
    rule("GET", "/v1/collections/{collection}/documents", Anyone, Read),
    rule("POST", "/v1/collections/{collection}/documents", Anyone, Write),
    rule("GET", "/v1/collections/{collection}/documents/{document:.+}", Anyone, Read),
    rule("DELETE", "/v1/collections/{collection}/documents/{document:.+}", Owner, Write),
    rule("PUT", "/v1/collections/{collection}/files/{file}", Anyone, Write),
    rule("POST", "/v1/collections/{collection}/search", Anyone, Read),
    rule("GET", "/v1/collections/{collection}/renewal", Anyone, Read),
    rule("POST", "/v1/collections/{collection}/renewal", Owner, Write),
    rule("DELETE", "/v1/collections/{collection}/renewal", Owner, Write),
    // Reads this machine's files.
    rule("POST", "/v1/collections/{collection}/ingest", Owner, Owner),
    // A key below admin is shown, and cancels, what goes into its tenant's collections.
    rule("GET", "/v1/ingests", Anyone, Read),
    rule("DELETE", "/v1/ingests/{job}", Owner, Write),
    rule("GET", "/v1/settings", Owner, Admin),
    // A key below admin hears of what is its tenant's.
    rule("GET", "/v1/events", Owner, Read),
    rule("GET", "/v1/keys", Owner, Owner),
    rule("POST", "/v1/keys", Owner, Owner),
    rule("DELETE", "/v1/keys/{key}", Owner, Owner),
    // A key below admin is shown its tenant's.
    rule("GET", "/v1/quotas", Owner, Read),
    rule("POST", "/v1/quotas", Owner, Owner),
    rule("GET", "/v1/pml/schemas", Anyone, Read),
    rule("POST", "/v1/pml/schemas", Anyone, Write),
    rule("GET", "/v1/pml/schemas/{name}", Anyone, Read),
    rule("DELETE", "/v1/pml/schemas/{name}", Owner, Write),
    rule("POST", "/v1/pml/schemas/{name}/encode", Owner, Write),
    // What its tools ask for is asked of the other paths, as the same caller.
    rule("POST", "/mcp", Anyone, Read),
    // A key below admin is shown what is its own.
    rule("GET", "/v1/cache/status", Anyone, Read),
    rule("GET", "/v1/cache/plans", Owner, Read),
    rule("GET", "/v1/cache/calibration", Owner, Admin),
    rule("POST", "/v1/cache/calibration", Owner, Admin),
    rule("GET", "/v1/cache/entries", Owner, Admin),
    rule("POST", "/v1/cache/evict", Owner, Admin),
    rule("POST", "/v1/cache/pin", Owner, Admin),
    rule("POST", "/v1/cache/unpin", Owner, Admin),
    rule("POST", "/v1/cache/invalidate", Owner, Admin),
    rule("POST", "/v1/cache/verify", Owner, Admin),
    rule("POST", "/v1/cache/gc", Owner, Admin),
    // Write and read folders of this machine.
    rule("POST", "/v1/cache/export", Owner, Owner),
    rule("POST", "/v1/cache/import", Owner, Owner),
    rule("POST", "/v1/cache/warm", Owner, Admin),
    rule("GET", "/v1/cache/jobs", Owner, Admin),
    rule("DELETE", "/v1/cache/jobs/{job}", Owner, Admin),
];

/// What is wanted for `method` on `path`, as the router has it. What is not in the table is the owner's.
pub fn wanted(method: &str, path: &str, keys: KeyMode, metrics_open: bool) -> Rank {
    match RULES.iter().find(|rule| rule.path == path && rule.method == method) {
        Some(_) if path == METRICS && metrics_open => Anyone,
        Some(rule) if keys == KeyMode::Off => rule.without_keys,
        Some(rule) => rule.with_keys,
        None => Owner,
    }
}

/// Whether a path, as the router has it, has a model read or write tokens.
pub fn asks(path: &str) -> bool {
    RULES.iter().any(|rule| rule.asks && rule.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every path, and who may use it: without keys, then by rank with keys. `a` anyone, `r` read, `w` write, `d` admin, `o` owner.
    const EXPECTED: &str = "
        GET / a arwdo
        HEAD / a arwdo
        GET /page/{name} a arwdo
        HEAD /page/{name} a arwdo
        GET /openapi.json a arwdo
        GET /healthz a arwdo
        GET /health a arwdo
        GET /readyz a arwdo
        GET /metrics a do
        POST /v1/chat/completions a rwdo
        POST /v1/completions a rwdo
        POST /tokenize a rwdo
        POST /detokenize a rwdo
        GET /tokenizer_info a rwdo
        POST /v1/responses a rwdo
        GET /v1/responses/{response} a rwdo
        DELETE /v1/responses/{response} a rwdo
        GET /v1/responses/{response}/input_items a rwdo
        POST /v1/responses/{response}/cancel a rwdo
        GET /v1/conversations o rwdo
        POST /v1/conversations a rwdo
        GET /v1/conversations/{conversation} a rwdo
        POST /v1/conversations/{conversation} a rwdo
        DELETE /v1/conversations/{conversation} a rwdo
        GET /v1/conversations/{conversation}/turns a rwdo
        GET /v1/conversations/{conversation}/items a rwdo
        POST /v1/conversations/{conversation}/items a rwdo
        GET /v1/conversations/{conversation}/items/{item} a rwdo
        DELETE /v1/conversations/{conversation}/items/{item} a rwdo
        POST /v1/messages a rwdo
        POST /v1/messages/count_tokens a rwdo
        POST /api/chat a rwdo
        POST /api/generate a rwdo
        POST /api/embed a rwdo
        POST /api/embeddings a rwdo
        GET /api/tags a rwdo
        GET /api/ps a rwdo
        POST /api/show a rwdo
        GET /api/version a arwdo
        POST /v1/embeddings a rwdo
        POST /v1/rerank a rwdo
        POST /v2/rerank a rwdo
        POST /v1/score a rwdo
        POST /score a rwdo
        GET /props a rwdo
        GET /slots o do
        GET /v1/models a rwdo
        GET /v1/models/{model:.+} a rwdo
        GET /v1/collections a rwdo
        DELETE /v1/collections/{collection} o wdo
        GET /v1/collections/{collection}/documents a rwdo
        POST /v1/collections/{collection}/documents a wdo
        GET /v1/collections/{collection}/documents/{document:.+} a rwdo
        DELETE /v1/collections/{collection}/documents/{document:.+} o wdo
        PUT /v1/collections/{collection}/files/{file} a wdo
        POST /v1/collections/{collection}/search a rwdo
        GET /v1/collections/{collection}/renewal a rwdo
        POST /v1/collections/{collection}/renewal o wdo
        DELETE /v1/collections/{collection}/renewal o wdo
        POST /v1/collections/{collection}/ingest o o
        GET /v1/ingests a rwdo
        DELETE /v1/ingests/{job} o wdo
        GET /v1/settings o do
        GET /v1/events o rwdo
        GET /v1/keys o o
        POST /v1/keys o o
        DELETE /v1/keys/{key} o o
        GET /v1/quotas o rwdo
        POST /v1/quotas o o
        GET /v1/pml/schemas a rwdo
        POST /v1/pml/schemas a wdo
        GET /v1/pml/schemas/{name} a rwdo
        DELETE /v1/pml/schemas/{name} o wdo
        POST /v1/pml/schemas/{name}/encode o wdo
        POST /mcp a rwdo
        GET /v1/cache/status a rwdo
        GET /v1/cache/plans o rwdo
        GET /v1/cache/calibration o do
        POST /v1/cache/calibration o do
        GET /v1/cache/entries o do
        POST /v1/cache/evict o do
        POST /v1/cache/pin o do
        POST /v1/cache/unpin o do
        POST /v1/cache/invalidate o do
        POST /v1/cache/verify o do
        POST /v1/cache/gc o do
        POST /v1/cache/export o o
        POST /v1/cache/import o o
        POST /v1/cache/warm o do
        GET /v1/cache/jobs o do
        DELETE /v1/cache/jobs/{job} o do";

    #[test]
    fn every_rank_on_every_path() {
        let ranks = [(Anyone, 'a'), (Read, 'r'), (Write, 'w'), (Admin, 'd'), (Owner, 'o')];
        let mut lines = 0;
        for line in EXPECTED.lines().filter(|line| !line.trim().is_empty()) {
            let [method, path, without, with] = line.split_whitespace().collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            let of = |keys| wanted(method, path, keys, false);
            assert_eq!(of(KeyMode::Off), if without == "o" { Owner } else { Anyone }, "{line}");
            let may: String =
                ranks.iter().filter(|(rank, _)| *rank >= of(KeyMode::Required)).map(|(_, letter)| letter).collect();
            assert_eq!(may, with, "{line}");
            lines += 1;
        }
        assert_eq!(lines, RULES.len());
    }

    /// Every path is made by `resource(path, methods, …)`.
    #[test]
    fn the_table_is_the_router() {
        fn sources(folder: &std::path::Path, into: &mut String) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    sources(&path, into);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    into.push_str(&std::fs::read_to_string(&path).unwrap());
                }
            }
        }
        let mut text = String::new();
        sources(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http"), &mut text);
        let mut routes = Vec::new();
        for made in text.split(concat!("resource", "(")).skip(1).filter(|made| made.trim_start().starts_with('"')) {
            let texts: Vec<&str> = made.split('"').take(4).collect();
            routes.extend(texts[3].split(", ").map(|method| format!("{method} {}", texts[1])));
        }
        let mut rules: Vec<String> = RULES.iter().map(|rule| format!("{} {}", rule.method, rule.path)).collect();
        routes.sort();
        rules.sort();
        assert_eq!(routes, rules);
    }

    /// A question that a node took and lost is asked of another one, whatever protocol it came by.
    #[test]
    fn proxies_may_ask_again_whatever_asks() {
        let deployed = |name: &str| {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops/deploy").join(name);
            std::fs::read_to_string(path).unwrap()
        };
        let haproxy = deployed("kubernetes/haproxy/haproxy.cfg");
        let haproxy: Vec<&str> =
            haproxy.lines().filter_map(|line| line.trim().strip_prefix("acl asks path_beg ")).collect();
        let prefixes: Vec<&str> = haproxy.iter().flat_map(|line| line.split(' ')).collect();
        let envoy = deployed("envoy.yaml");
        let again: Vec<&str> = envoy.lines().skip_while(|line| !line.contains("/v1/(chat")).take(2).collect();
        assert!(again[1].contains("*asked_again"), "{again:?}");
        // `/v1/(one|two.*)|/three`
        let pattern = again[0].split('"').nth(1).unwrap();
        let (below, others) = pattern.strip_prefix("/v1/(").and_then(|rest| rest.split_once(')')).unwrap();
        let below = below.split('|').map(|name| format!("/v1/{name}"));
        let patterns: Vec<String> = below.chain(others.split('|').map(str::to_owned)).collect();
        let is_like = |path: &str, pattern: &String| match pattern.strip_suffix(".*") {
            Some(prefix) => path.starts_with(prefix),
            None => path == pattern,
        };
        for rule in RULES.iter().filter(|rule| rule.asks) {
            assert!(prefixes.iter().any(|prefix| rule.path.starts_with(prefix)), "{}: haproxy.cfg", rule.path);
            assert!(patterns.iter().any(|pattern| is_like(rule.path, pattern)), "{}: envoy.yaml", rule.path);
        }
    }

    /// Each path stands in docs/http.md, with any word in the place of a name.
    #[test]
    fn every_path_is_described() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/http.md");
        let text = std::fs::read_to_string(path).unwrap();
        let words =
            text.split(|c: char| c.is_whitespace() || "`?(),\"'|".contains(c)).filter(|word| word.starts_with('/'));
        let described: Vec<Vec<&str>> =
            words.map(|word| word.trim_end_matches(['.', ':', ';']).split('/').collect()).collect();
        for rule in RULES {
            let parts: Vec<&str> = rule.path.split('/').collect();
            let is_like = |(word, part): (&&str, &&str)| word == part || (part.starts_with('{') && !word.is_empty());
            let is_it = |words: &Vec<&str>| words.len() == parts.len() && words.iter().zip(&parts).all(is_like);
            assert!(described.iter().any(is_it), "docs/http.md has no {}", rule.path);
        }
    }

    #[test]
    fn what_is_not_in_the_table_is_the_owners() {
        for keys in [KeyMode::Off, KeyMode::Required] {
            assert_eq!(wanted("GET", "/v1/new", keys, false), Owner);
            assert_eq!(wanted("PATCH", "/v1/keys", keys, false), Owner);
        }
        assert_eq!(wanted("GET", METRICS, KeyMode::Required, true), Anyone);
    }
}
