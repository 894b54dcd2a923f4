//! The page at `/`: plain modules, in the binary, from nowhere else. It does what `docs/http.md` describes, by the same paths.

use std::sync::OnceLock;

use actix_web::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, ETAG, HeaderName, IF_NONE_MATCH, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use actix_web::{HttpRequest, HttpResponse, web};
use sha2::{Digest, Sha256};

use super::resource;
use crate::error::{Error, ErrorKind};
use crate::http::error::Answered;

/// Nothing of another host, nothing in line, in nobody's frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const INDEX: &str = "index.html";

/// One file of the page.
struct Asset {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

macro_rules! assets {
    ($($name:literal $kind:ident),+ $(,)?) => {
        &[$(Asset { name: $name, kind: $kind, text: include_str!(concat!("page/", $name)) }),+]
    };
}

const SVG: &str = "image/svg+xml";
const ASSETS: &[Asset] = assets![
    "index.html" HTML,
    "icon.svg" SVG,
    "style.css" CSS,
    "api.js" SCRIPT,
    "app.js" SCRIPT,
    "ask.js" SCRIPT,
    "collections.js" SCRIPT,
    "conversations.js" SCRIPT,
    "dom.js" SCRIPT,
    "exporting.js" SCRIPT,
    "jobs.js" SCRIPT,
    "keys.js" SCRIPT,
    "live.js" SCRIPT,
    "owner.js" SCRIPT,
    "plan.js" SCRIPT,
    "plans.js" SCRIPT,
    "settings.js" SCRIPT,
    "store.js" SCRIPT,
    "turn.js" SCRIPT,
    "upload.js" SCRIPT,
];

/// The paths of the page.
pub fn paths(config: &mut web::ServiceConfig) {
    let index = async |request: HttpRequest| send(&request, INDEX);
    let asset = async |request: HttpRequest, name: web::Path<String>| send(&request, &name);
    config.service(resource("/", "GET, HEAD", vec![web::get().to(index), web::head().to(index)])).service(resource(
        "/page/{name}",
        "GET, HEAD",
        vec![web::get().to(asset), web::head().to(asset)],
    ));
}

fn send(request: &HttpRequest, name: &str) -> Answered {
    let asset = ASSETS.iter().find(|asset| asset.name == name);
    let asset = asset.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("the page has no file `{name}`")))?;
    let sent = request.headers().get(IF_NONE_MATCH).and_then(|tags| tags.to_str().ok());
    let is_known =
        sent.is_some_and(|tags| tags.split(',').any(|tag| tag.trim().trim_start_matches("W/") == tag_of_all()));
    let mut response = if is_known { HttpResponse::NotModified() } else { HttpResponse::Ok() };
    response
        .insert_header((ETAG, tag_of_all()))
        // Asked each time whether it is the same: the next version has the same names.
        .insert_header((CACHE_CONTROL, "no-cache"))
        .insert_header((CONTENT_SECURITY_POLICY, POLICY))
        .insert_header((REFERRER_POLICY, "no-referrer"))
        .insert_header((X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((HeaderName::from_static("cross-origin-resource-policy"), "same-origin"));
    Ok(if is_known { response.finish() } else { response.content_type(asset.kind).body(asset.text) })
}

/// One tag for all files, as they change together.
fn tag_of_all() -> &'static str {
    static TAG: OnceLock<String> = OnceLock::new();
    TAG.get_or_init(|| {
        let mut hash = Sha256::new();
        ASSETS.iter().for_each(|asset| hash.update(asset.text));
        let digits: String = hash.finalize().iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        format!("\"{digits}\"")
    })
}

#[cfg(test)]
mod tests {
    use actix_web::App;
    use actix_web::http::StatusCode;
    use actix_web::http::header::CONTENT_TYPE;
    use actix_web::test::{TestRequest, call_service, init_service, read_body};

    use super::*;

    #[actix_web::test]
    async fn every_file_is_served_once_and_then_known() {
        let served = async |request: HttpRequest| match request.path() {
            "/" => send(&request, INDEX),
            path => send(&request, path.trim_start_matches("/page/")),
        };
        let app = init_service(App::new().default_service(web::to(served))).await;
        for asset in ASSETS {
            let path = if asset.name == INDEX { "/".to_owned() } else { format!("/page/{}", asset.name) };
            let response = call_service(&app, TestRequest::get().uri(&path).to_request()).await;
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            assert_eq!(response.headers().get(CONTENT_TYPE).unwrap(), asset.kind, "{path}");
            assert!(response.headers().contains_key(CONTENT_SECURITY_POLICY), "{path}");
            let tag = response.headers().get(ETAG).unwrap().clone();
            assert_eq!(read_body(response).await, asset.text, "{path}");
            let again = TestRequest::get().uri(&path).insert_header((IF_NONE_MATCH, tag)).to_request();
            let response = call_service(&app, again).await;
            assert_eq!(response.status(), StatusCode::NOT_MODIFIED, "{path}");
            assert!(read_body(response).await.is_empty(), "{path}");
        }
        let response = call_service(&app, TestRequest::get().uri("/page/../service.json").to_request()).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
    }

    #[test]
    fn the_page_asks_no_other_host_and_imports_what_is_there() {
        for asset in ASSETS {
            let text = asset.text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("://"), "{} names another host", asset.name);
            assert!(!text.contains("innerHTML") && !text.contains("style=\""), "{} breaks the policy", asset.name);
            // Below the page's own address, so that a proxy may serve it under a folder.
            assert!(!text.contains("\"/page/"), "{} has an absolute address", asset.name);
            for part in text.split("\"page/").skip(1).chain(text.split("from \"./").skip(1)) {
                let name = part.split('"').next().unwrap();
                assert!(ASSETS.iter().any(|asset| asset.name == name), "{} names {name}", asset.name);
            }
        }
    }

    /// All of it is asked for at the first visit, maybe over a slow line to somebody's server.
    #[test]
    fn the_page_is_light() {
        let bytes: usize = ASSETS.iter().map(|asset| asset.text.len()).sum();
        assert!(bytes < 300 << 10, "{bytes} bytes");
    }

    #[test]
    fn every_file_of_the_folder_is_in_the_binary() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/http/page");
        for file in std::fs::read_dir(folder).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            assert!(ASSETS.iter().any(|asset| asset.name == name), "{name}");
        }
    }
}
