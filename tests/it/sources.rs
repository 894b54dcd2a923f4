//! What is ingested from elsewhere: a web site, a feed, a Git repository, a bucket.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use actix_web::http::StatusCode;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use serde_json::{Value, json};

use crate::harness::{Folder, Ran};
use crate::s3_server::S3Server;
use crate::sealed::ANYBODY;

/// What a site answers at a path.
#[derive(Clone)]
struct Page {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

/// A site on this machine, whose pages change, and that notes who asked for what.
#[derive(Clone, Default)]
struct Site {
    pages: Arc<Mutex<BTreeMap<String, Page>>>,
    asked: Arc<Mutex<Vec<(String, bool)>>>,
}

impl Site {
    fn serve(&self) -> String {
        let site = web::Data::new(self.clone());
        let server =
            HttpServer::new(move || App::new().app_data(site.clone()).default_service(web::to(answer))).workers(1);
        let server = server.bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", server.addrs()[0]);
        tokio::spawn(server.run());
        address
    }

    fn put(&self, path: &str, page: Page) {
        self.pages.lock().unwrap().insert(path.to_owned(), page);
    }

    fn html(&self, path: &str, body: &str) {
        let etag = ("ETag", format!("\"{}\"", body.len()));
        let headers = vec![("Content-Type", "text/html; charset=utf-8".to_owned()), etag];
        self.put(path, Page { status: 200, headers, body: format!("<html><body>{body}</body></html>").into_bytes() });
    }

    fn send_elsewhere(&self, path: &str, status: u16, to: &str) {
        self.put(path, Page { status, headers: vec![("Location", to.to_owned())], body: Vec::new() });
    }

    fn remove(&self, path: &str) {
        self.pages.lock().unwrap().remove(path);
    }

    /// The paths that were asked for since the last time, and of how many the answer was that nothing changed.
    fn asked(&self) -> (Vec<String>, usize) {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        let unchanged = asked.iter().filter(|(_, is_unchanged)| *is_unchanged).count();
        (asked.into_iter().map(|(path, _)| path).collect(), unchanged)
    }
}

async fn answer(site: web::Data<Site>, request: HttpRequest) -> HttpResponse {
    let path = request.uri().to_string();
    let page = site.pages.lock().unwrap().get(&path).cloned();
    let known = request.headers().get("If-None-Match").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let etag = |page: &Page| page.headers.iter().find(|(name, _)| *name == "ETag").map(|(_, value)| value.clone());
    let is_unchanged = known.is_some() && page.as_ref().and_then(etag) == known;
    site.asked.lock().unwrap().push((path, is_unchanged));
    let Some(page) = page else { return HttpResponse::NotFound().finish() };
    if is_unchanged {
        return HttpResponse::NotModified().finish();
    }
    let mut reply = HttpResponse::build(StatusCode::from_u16(page.status).unwrap());
    page.headers.iter().for_each(|(name, value)| {
        reply.insert_header((*name, value.as_str()));
    });
    reply.body(page.body)
}

fn ingest(folder: &Folder, arguments: &[&str]) -> Value {
    folder.json(&[&["ingest", "--json"], arguments].concat())
}

fn sources(folder: &Folder) -> Vec<String> {
    let listed = folder.json(&["documents", "list", "--json"]);
    let mut sources: Vec<String> =
        listed.as_array().unwrap().iter().map(|document| document["source"].as_str().unwrap().to_owned()).collect();
    sources.sort();
    sources
}

fn guide(site: &Site) {
    site.html(
        "/guide/",
        "<p>The mill of Orvik opens at nine.</p><a href='lamps.html'>Lamps</a> <a href='deep/one'>One</a> <a href='/secret/x'>x</a>
         <a href='plan.txt#part'>Plan</a> <a href='photo.png'>photo</a> <a href='broken'>broken</a> <a href='/guide/forbidden/y'>y</a>
         <a href='moved'>moved</a> <a href='gone-away'>away</a> <a href='quiet'>quiet</a>",
    );
    site.html("/guide/lamps.html", "<p>Nine lamps hang in the mill.</p><a href='/guide/'>back</a>");
    site.html("/guide/deep/one", "<p>The wheel is made of oak.</p><a href='two'>two</a>");
    for path in ["/guide/deep/two", "/guide/deep/2"] {
        site.html(path, "<link rel=canonical href='/guide/deep/2'><p>The miller keeps bees.</p>");
    }
    site.html("/guide/quiet", "<meta name=robots content=noindex><p>Not to be found.</p><a href='found'>found</a>");
    site.html("/guide/found", "<p>The weir was built in 1911.</p>");
    site.html("/guide/forbidden/y", "<p>Nobody may read this.</p>");
    site.html("/secret/x", "<p>Beside the guide.</p>");
    site.send_elsewhere("/guide/moved", 301, "/guide/found");
    site.send_elsewhere("/guide/gone-away", 302, "/secret/x");
    let headers = vec![
        ("Content-Type", "text/plain; charset=windows-1252".to_owned()),
        ("Last-Modified", "Tue, 03 Mar 2026 10:00:00 GMT".to_owned()),
    ];
    site.put(
        "/guide/plan.txt",
        Page { status: 200, headers, body: b"The weir needs 14 planks, says Jos\xe9.".to_vec() },
    );
    let robots = "User-agent: *\nDisallow: /guide/forbidden/\n";
    site.put("/robots.txt", Page { status: 200, headers: Vec::new(), body: robots.into() });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_is_read_as_far_as_its_folder_and_its_rules_go() {
    let (folder, site) = (Folder::new(), Site::default());
    guide(&site);
    let address = site.serve();
    let at = |path: &str| format!("{address}{path}");
    let start = at("/guide/");
    let report = ingest(&folder, &[&start]);
    let all = ["/guide/", "/guide/deep/2", "/guide/deep/one", "/guide/found", "/guide/lamps.html", "/guide/plan.txt"];
    assert_eq!((&report["files"], &report["documents_added"]), (&json!(6), &json!(6)), "{report}");
    assert_eq!((&report["skipped"], &report["left_alone"]), (&json!([]), &json!({ ".png": 1 })), "{report}");
    assert_eq!(sources(&folder), all.map(at));
    let (asked, _) = site.asked();
    assert!(!asked.iter().any(|path| path.starts_with("/secret") || path.contains("forbidden")), "{asked:?}");
    assert_eq!(asked[0], "/robots.txt", "{asked:?}");
    let mut once = asked.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), asked.len(), "{asked:?}");
    // Found, with its address, and by what is known of it.
    let found = folder.json(&["search", "how many planks does the weir need", "--json"]);
    assert_eq!(found["data"][0]["passage"]["source"], json!(at("/guide/plan.txt")), "{found}");
    assert!(found["data"][0]["passage"]["text"].as_str().unwrap().contains("José"), "{found}");
    let old = folder.json(&["search", "weir", "--filter", "changed<2026-04-01", "--json"]);
    assert_eq!(old["data"].as_array().unwrap().len(), 1, "{old}");
    // No copy stays.
    let copies = std::fs::read_dir(folder.data().join("sources")).unwrap();
    let copies: Vec<_> = copies.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(copies.len() == 1 && copies[0].ends_with(".json"), "{copies:?}");

    // Again: what is as it was is not sent.
    let report = ingest(&folder, &[&start]);
    let (_, unchanged) = site.asked();
    // The first page is always read, the text has no mark by which it could be known, and of one page only its other address is stored.
    assert_eq!((unchanged, &report["files_unchanged"]), (3, &json!(3)), "{report}");
    assert_eq!((&report["documents_unchanged"], &report["documents_added"]), (&json!(3), &json!(0)), "{report}");
    let ran = folder.run(&["ingest", &start]).succeeded();
    assert!(ran.stdout.contains("3 files taken, 3 files as before"), "{}", ran.stdout);

    // One changed, one is gone, and to one nothing leads any more.
    site.html("/guide/lamps.html", "<p>Eleven lamps hang in the mill now.</p>");
    site.remove("/guide/found");
    site.html("/guide/", "<p>The mill of Orvik opens at nine.</p><a href='lamps.html'>Lamps</a>");
    let report = ingest(&folder, &[&start]);
    assert_eq!((&report["documents_replaced"], &report["documents_gone"]), (&json!(2), &json!(1)), "{report}");
    let report = ingest(&folder, &[&start, "--prune"]);
    assert_eq!(report["documents_pruned"], 1, "{report}");
    let left = ["/guide/", "/guide/deep/2", "/guide/deep/one", "/guide/lamps.html", "/guide/plan.txt"];
    assert_eq!(sources(&folder), left.map(at));
    // A site that has a bad moment loses nothing.
    for path in ["/guide/plan.txt", "/guide/deep/one"] {
        let headers = vec![("Retry-After", "0".to_owned())];
        site.put(path, Page { status: 503, headers, body: Vec::new() });
    }
    let report = ingest(&folder, &[&start, "--prune"]);
    let skipped = report["skipped"].to_string();
    assert!(skipped.contains("HTTP 503") && report["documents_pruned"] == 0, "{report}");
    assert_eq!(sources(&folder), left.map(at));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_is_read_no_further_than_is_wanted() {
    let (folder, site) = (Folder::new(), Site::default());
    guide(&site);
    let address = site.serve();
    let start = format!("{address}/guide/");
    assert_eq!(ingest(&folder, &[&start, "--depth", "0"])["documents_added"], 1);
    assert_eq!(ingest(&folder, &[&start, "--depth", "1"])["documents_added"], 4);
    let report = ingest(&folder, &[&start, "--pages", "2", "--prune"]);
    assert!(report["skipped"].to_string().contains("the first 2 pages were taken; --pages N takes more"), "{report}");
    assert_eq!(report["documents_gone"], 0, "what was not looked at is not gone: {report}");
    // One that cannot be had keeps no other from being read.
    let report = ingest(&folder, &[&start, &format!("{address}/none"), "--depth", "0"]);
    let skipped = report["skipped"].to_string();
    assert!(
        skipped.contains("/none") && skipped.contains("HTTP 404") && report["documents_unchanged"] == 1,
        "{report}"
    );
    // A page alone, as a file is.
    let other = Folder::new();
    assert_eq!(ingest(&other, &[&format!("{address}/guide/plan.txt"), "--depth", "0"])["documents_added"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_leads_to_no_other_service_of_this_machine() {
    let (folder, site, other) = (Folder::new(), Site::default(), Site::default());
    let (address, inside) = (site.serve(), other.serve());
    let by_name = inside.replace("127.0.0.1", "localhost");
    other.html("/", "<p>The keys of the house.</p>");
    site.html("/", &format!("<p>A page.</p><a href='{inside}/'>x</a><a href='/jump'>x</a><a href='/jump2'>x</a>"));
    site.send_elsewhere("/jump", 302, &format!("{inside}/"));
    site.send_elsewhere("/jump2", 301, &format!("{by_name}/"));
    assert_eq!(ingest(&folder, &[&address])["documents_added"], 1);
    assert_eq!(other.asked().0, Vec::<String>::new());
    // Neither where the named address itself leads there, nor by a feed.
    site.send_elsewhere("/start", 301, &format!("{inside}/"));
    let named = format!("{address}/start");
    folder.run(&["ingest", &named]).failed_with(&["a network of one's own", "name it itself to read it"]);
    let feed = format!(
        "<rss version='2.0'><channel><title>News</title><link>{address}/</link>
         <item><title>1</title><link>{address}/entry</link></item><item><title>2</title><link>{inside}/</link></item></channel></rss>"
    );
    let headers = vec![("Content-Type", "application/rss+xml".to_owned())];
    site.put("/feed", Page { status: 200, headers, body: feed.into_bytes() });
    site.html("/entry", "<p>The bell was cast in 1802.</p><a href='/'>home</a>");
    let report = ingest(&folder, &[&format!("{address}/feed")]);
    assert_eq!(report["documents_added"], 1, "{report}");
    assert!(report["skipped"].to_string().contains("a network of one's own"), "{report}");
    assert_eq!(other.asked().0, Vec::<String>::new());
    // Whoever names it has it.
    assert_eq!(ingest(&folder, &[&inside])["documents_added"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_leads_to_nothing_is_one_clear_error() {
    let (folder, site) = (Folder::new(), Site::default());
    let address = site.serve();
    site.send_elsewhere("/round", 302, "/round");
    site.put("/closed", Page { status: 403, headers: Vec::new(), body: Vec::new() });
    site.put(
        "/robots.txt",
        Page { status: 200, headers: Vec::new(), body: b"User-agent: ragstone\nDisallow: /no/".to_vec() },
    );
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (named, words) in [
        (format!("{address}/none"), "there is no such page (HTTP 404)"),
        (format!("{address}/round"), "leads from one address to the next"),
        (format!("{address}/closed"), "its server refuses it (HTTP 403"),
        (format!("{address}/no/x"), "robots.txt forbids it"),
        ("http://".to_owned(), "is no address"),
        ("https://ida:pw@a.example/".to_owned(), "a name or a password"),
        ("git+file:///nowhere/at/all".to_owned(), "cannot fetch file:///nowhere/at/all"),
    ] {
        folder.run(&["ingest", &named]).failed_with(&[words]);
    }
    let ran = folder.run(&["ingest", &format!("http://{free}/")]);
    ran.failed_with(&["cannot fetch", "Connection refused"]);
    assert_eq!(
        folder.json(&["ingest", "--list", "--json"]).as_array().map_or(0, Vec::len),
        2,
        "these may be there at the next start"
    );
    // An image is of no kind that is read.
    site.put("/photo", Page { status: 200, headers: vec![("Content-Type", "image/png".into())], body: vec![1; 100] });
    folder.run(&["ingest", &format!("{address}/photo")]).failed_with(&["image/png"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_fetches_for_its_owner() {
    let (folder, site) = (Folder::new(), Site::default());
    guide(&site);
    let address = site.serve();
    let service = folder.serve(&[]).await;
    let token = folder.token();
    let ingest = async |body: &Value| {
        let url = service.url("/v1/collections/guide/ingest");
        let reply =
            reqwest::Client::new().post(url).header("x-ragstone-token", &token).json(body).send().await.unwrap();
        (reply.status().as_u16(), reply.text().await.unwrap())
    };
    let body = json!({ "paths": [format!("{address}/guide/")], "depth": 1, "metadata": { "of": "Orvik" } });
    let (status, refused) = service.post("/v1/collections/guide/ingest", &body).await;
    assert_eq!(status, 403, "nobody else has the service fetch anything: {refused}");
    let (_, events) = ingest(&body).await;
    assert!(events.contains("\"fetching\"") && events.contains("\"finished\""), "{events}");
    let (_, found) = service.get("/v1/collections/guide/documents").await;
    assert_eq!(found["data"].as_array().unwrap().len(), 5, "{found}");
    for (body, words) in [
        (json!({ "paths": ["https://ida:pw@a.example/"] }), "a name or a password"),
        (json!({ "paths": ["notes"] }), "must be absolute, or addresses"),
        (json!({ "paths": ["https://a.example/"], "pages": 0 }), "at least 1"),
    ] {
        let (status, refused) = ingest(&body).await;
        assert_eq!(status, 400, "{refused}");
        assert!(refused.contains(words), "{refused}");
    }
    assert_eq!(service.stop(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_that_wants_to_be_left_alone_is() {
    let (folder, site) = (Folder::new(), Site::default());
    let address = site.serve();
    let busy = |path: &str, wait: &str| {
        let headers = vec![("Retry-After", wait.to_owned())];
        site.put(path, Page { status: 429, headers, body: Vec::new() });
    };
    site.html("/long/", "<p>The mill of Orvik.</p><a href='a'>a</a><a href='b'>b</a>");
    site.html("/long/b", "<p>Not to be asked for today.</p>");
    busy("/long/a", "3600");
    let report = ingest(&folder, &[&format!("{address}/long/")]);
    let skipped = report["skipped"].to_string();
    assert!(skipped.contains("HTTP 429") && skipped.contains("wants to be left alone"), "{report}");
    let (asked, _) = site.asked();
    assert!(report["documents_added"] == 1 && !asked.contains(&"/long/b".to_owned()), "{report} {asked:?}");
    // One that says so of each page for a moment is so, too.
    let links: String = (1..9).map(|page| format!("<a href='{page}'>x</a>")).collect();
    site.html("/short/", &format!("<p>The weir of Orvik.</p>{links}"));
    (1..9).for_each(|page| busy(&format!("/short/{page}"), "0"));
    let report = ingest(&folder, &[&format!("{address}/short/")]);
    assert!(report["skipped"].to_string().contains("pages in a row could not be had"), "{report}");
    assert!(!site.asked().0.contains(&"/short/6".to_owned()));
    // At the first page, and of the rules: it may be better at the next start.
    for (path, words) in [("/busy/", "cannot fetch"), ("/robots.txt", "its robots.txt cannot be had")] {
        let other = Folder::new();
        busy(path, "3600");
        other.run(&["ingest", &format!("{address}/busy/")]).failed_with(&[words, "HTTP 429"]);
        assert_eq!(other.json(&["ingest", "--list", "--json"]).as_array().map_or(0, Vec::len), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_known_of_a_site_keeps_nothing_from_being_found() {
    let (folder, site) = (Folder::new(), Site::default());
    let address = site.serve();
    let links: String = (0..1100).map(|page| format!("<a href='n{page}'>x</a>")).collect();
    site.html("/", "<p>The mill of Orvik.</p><a href='all'>All</a><a href='notes.jsonl'>Notes</a>");
    site.html("/all", &format!("<p>All pages of the mill.</p>{links}"));
    let notes = |etag: &str, text: &str| {
        let headers = vec![("Content-Type", "application/x-ndjson".to_owned()), ("ETag", etag.to_owned())];
        site.put("/notes.jsonl", Page { status: 200, headers, body: text.into() });
    };
    notes("\"1\"", "{\"text\": \"The wheel is made of oak.\"}\n");
    assert_eq!(ingest(&folder, &[&address])["documents_added"], 3);
    // Behind many links one page is there now.
    site.html("/n1099", "<p>The miller keeps bees.</p>");
    let report = ingest(&folder, &[&address]);
    assert_eq!((&report["documents_added"], &report["files_unchanged"]), (&json!(1), &json!(1)), "{report}");
    // What could not be read is not known, and read as soon as it can be.
    site.html("/all", "<p>No more of them.</p>");
    notes("\"2\"", "{\"text\": \n");
    for _ in 0..2 {
        let report = ingest(&folder, &[&address]);
        assert!(report["skipped"].to_string().contains("notes.jsonl"), "{report}");
    }
    notes("\"2\"", "{\"text\": \"The wheel is made of ash.\"}\n");
    assert_eq!(ingest(&folder, &[&address])["documents_replaced"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_gone_is_found_beyond_the_bound_of_pages() {
    let (folder, site) = (Folder::new(), Site::default());
    let address = site.serve();
    for page in ["a", "b", "c"] {
        site.html(&format!("/{page}"), &format!("<p>Page {page} of the mill.</p>"));
    }
    site.html("/", "<p>The mill.</p><a href='a'>a</a><a href='b'>b</a><a href='c'>c</a>");
    assert_eq!(ingest(&folder, &[&address])["documents_added"], 4);
    site.remove("/c");
    site.html("/", "<p>The mill.</p><a href='a'>a</a><a href='b'>b</a>");
    let report = ingest(&folder, &[&address, "--pages", "2", "--prune"]);
    assert_eq!((&report["documents_gone"], &report["documents_pruned"]), (&json!(1), &json!(1)), "{report}");
    assert_eq!(sources(&folder), ["/", "/a", "/b"].map(|path| format!("{address}{path}")));
}

#[tokio::test(flavor = "multi_thread")]
async fn names_with_a_full_stop_are_pages_and_json_may_be_a_feed() {
    let (folder, site) = (Folder::new(), Site::default());
    let address = site.serve();
    let at = |path: &str| format!("{address}{path}");
    site.html("/docs/11.x", "<p>The newest.</p><a href='/docs/10.x'>old</a><a href='/docs/11.x/system.io'>io</a>");
    site.html("/docs/11.x/system.io", "<p>Reads and writes.</p>");
    site.html("/docs/10.x", "<p>Another version, which nobody named.</p>");
    ingest(&folder, &[&at("/docs/11.x")]);
    assert_eq!(sources(&folder), ["/docs/11.x", "/docs/11.x/system.io"].map(at));
    let item = json!({ "id": "1", "url": at("/entry"), "content_text": "The bell." });
    let feed = json!({ "version": "https://jsonfeed.org/version/1.1", "title": "News", "items": [item] });
    let headers = vec![("Content-Type", "application/feed+json; charset=utf-8".to_owned())];
    site.put("/feed/json", Page { status: 200, headers, body: feed.to_string().into_bytes() });
    site.html("/entry", "<p>The bell was cast in 1802.</p>");
    assert_eq!(ingest(&folder, &[&at("/feed/json")])["documents_added"], 1);
    assert!(sources(&folder).contains(&at("/entry")));
}

fn git(folder: &Path, arguments: &[&str]) {
    let ran = Command::new("git")
        .args(["-c", "user.name=Ida", "-c", "user.email=ida@a.example", "-c", "init.defaultBranch=main"])
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn a_repository_is_read_as_its_newest_commit_has_it() {
    let folder = Folder::new();
    let readme = folder.write("wells/README.md", "# Wells\n\nThe north well is nine metres deep.");
    folder.write("wells/src/pump.rs", "/// Lifts water.\nfn lift() {}\n");
    folder.write("wells/notes.md", "The south well is dry.");
    folder.write("wells/photo.png", [0x89, b'P', b'N', b'G', 0]);
    let wells = readme.parent().unwrap();
    git(wells, &["init", "-q"]);
    git(wells, &["add", "-A"]);
    git(wells, &["commit", "-qm", "first"]);
    let address = format!("git+file://{}", wells.display());
    let report = ingest(&folder, &[&address]);
    assert_eq!((&report["documents_added"], &report["left_alone"]), (&json!(3), &json!({ ".png": 1 })), "{report}");
    let base = format!("git+file://{}@HEAD/", wells.display());
    assert_eq!(sources(&folder), ["README.md", "notes.md", "src/pump.rs"].map(|file| format!("{base}{file}")));
    assert_eq!(ingest(&folder, &[&address])["files_unchanged"], 3, "the commit is known");
    std::fs::remove_file(wells.join("src/pump.rs")).unwrap();
    std::fs::write(&readme, "# Wells\n\nThe north well is ten metres deep.").unwrap();
    assert_eq!(ingest(&folder, &[&address])["files_unchanged"], 3, "what is not committed is not there");
    git(wells, &["commit", "-qam", "second"]);
    let report = ingest(&folder, &[&address, "--prune"]);
    assert_eq!((&report["documents_replaced"], &report["documents_pruned"]), (&json!(1), &json!(1)), "{report}");
    assert_eq!(report["documents_unchanged"], 1, "{report}");
    git(wells, &["branch", "old", "HEAD~1"]);
    let other = Folder::new();
    assert_eq!(ingest(&other, &[&format!("{address}#old")])["documents_added"], 3);
    other.run(&["ingest", &format!("{address}#none")]).failed_with(&["cannot fetch", "no such branch"]);
    other.run(&["ingest", "git+ext::sh"]).failed_with(&["no address of a repository"]);
}

#[test]
fn what_a_repository_no_longer_has_can_be_removed_later_and_what_failed_is_tried_again() {
    let folder = Folder::new();
    let readme = folder.write("wells/README.md", "# Wells\n\nThe north well is nine metres deep.");
    folder.write("wells/secret.md", "The key of the pump house is under the stone.");
    let bad = folder.write("wells/bad.jsonl", "{\"text\": \n");
    folder.write(
        "wells/depths.csv",
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32\nsize 132735\n",
    );
    let wells = readme.parent().unwrap();
    git(wells, &["init", "-q"]);
    git(wells, &["add", "-A"]);
    git(wells, &["commit", "-qm", "first"]);
    let address = format!("git+file://{}", wells.display());
    for added in [2, 0] {
        let report = ingest(&folder, &[&address]);
        let skipped = report["skipped"].to_string();
        assert!(skipped.contains("bad.jsonl") && skipped.contains("kept in Git LFS"), "{report}");
        assert_eq!((&report["documents_added"], &report["files_unchanged"]), (&json!(added), &json!(0)), "{report}");
    }
    std::fs::write(&bad, "{\"text\": \"The south well is dry.\"}\n").unwrap();
    std::fs::remove_file(wells.join("secret.md")).unwrap();
    git(wells, &["commit", "-qam", "second"]);
    let gone =
        |report: &Value| ["documents_gone", "documents_pruned", "files_unchanged"].map(|count| report[count].as_u64());
    let report = ingest(&folder, &[&address]);
    assert_eq!(gone(&report), [Some(1), Some(0), Some(0)], "{report}");
    // The commit is known now; what it no longer has is so all the same.
    let (plain, prune) = (vec![address.as_str()], vec![address.as_str(), "--prune"]);
    for (arguments, counts) in [(&plain, [1, 0, 2]), (&prune, [1, 1, 2]), (&plain, [0, 0, 2])] {
        let report = ingest(&folder, arguments);
        assert_eq!(gone(&report), counts.map(Some), "{arguments:?} {report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_is_read_below_its_prefix() {
    let Some(server) = S3Server::start() else { return };
    let folder = Folder::new();
    let run = |arguments: &[&str]| {
        let mut command = folder.ragstone(arguments);
        command.envs([
            ("AWS_ENDPOINT", server.endpoint.as_str()),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "hunter2"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ALLOW_HTTP", "true"),
        ]);
        Ran::of(command.output().unwrap())
    };
    let ingest = |arguments: &[&str]| {
        let ran = run(&[&["ingest", "s3://bucket/papers/", "--json"], arguments].concat()).succeeded();
        serde_json::from_str::<Value>(&ran.stdout).unwrap()
    };
    let put = async |key: &str, text: &'static str| {
        let put =
            reqwest::Client::new().put(format!("{}/bucket/{key}", server.endpoint)).header("authorization", ANYBODY);
        assert!(put.body(text).send().await.unwrap().status().is_success());
    };
    put("papers/mill.md", "The mill of Orvik opens at nine.").await;
    put("papers/deep/weir.txt", "The weir was built in 1911.").await;
    put("papers/photo.png", "x").await;
    put("papers2/other.md", "Beside the prefix.").await;
    let report = ingest(&[]);
    assert_eq!((&report["documents_added"], &report["left_alone"]), (&json!(2), &json!({ ".png": 1 })), "{report}");
    assert_eq!(sources(&folder), ["s3://bucket/papers/deep/weir.txt", "s3://bucket/papers/mill.md"]);
    assert_eq!(ingest(&[])["files_unchanged"], 2);
    put("papers/mill.md", "The mill of Orvik opens at ten.").await;
    let weir = format!("{}/bucket/papers/deep/weir.txt", server.endpoint);
    reqwest::Client::new().delete(weir).header("authorization", ANYBODY).send().await.unwrap();
    let report = ingest(&["--prune"]);
    assert_eq!((&report["documents_replaced"], &report["documents_pruned"]), (&json!(1), &json!(1)), "{report}");
    run(&["ingest", "s3://bucket/none"]).failed_with(&["has no objects"]);
}
