//! The same on a server that others wrote.

use object_store::ClientOptions;
use object_store::aws::AmazonS3Builder;

use super::s3_server::S3Server;
use super::*;
use crate::bucket::Lease;

fn s3(server: &S3Server) -> Arc<dyn ObjectStore> {
    let builder = AmazonS3Builder::new()
        .with_endpoint(&server.endpoint)
        .with_bucket_name("bucket")
        .with_region("us-east-1")
        .with_access_key_id("test")
        .with_secret_access_key("test")
        .with_client_options(ClientOptions::new().with_allow_http(true));
    Arc::new(builder.build().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_share_a_corpus_on_an_s3_server() {
    let Some(server) = S3Server::start() else { return };
    let store = s3(&server);
    let open = || node_with(store.clone(), at_once(), Env::system());
    let (a, b) = (open().await.unwrap(), open().await.unwrap());
    upsert(&a, &[document("bridge", "Built of granite."), document("bakery", "It sells rye bread.")]).await;
    assert_eq!(find(&b, "rye bread", SearchMode::Fused, 1).await, ["bakery"]);
    let documents = [document("bakery", "It sells cakes."), document("new", "Another text.")];
    let adding = [&a, &b].map(|corpus| corpus.upsert("c", documents.to_vec(), &(), &|_| Ok(())));
    futures::future::try_join_all(adding).await.unwrap();
    assert_eq!(b.delete("c", "bridge", &()).await.unwrap(), 1);
    for corpus in [&a, &b, &open().await.unwrap()] {
        assert_eq!((all_ids(corpus).await, rows(corpus).await), (vec!["bakery".to_owned(), "new".to_owned()], 2));
        assert_eq!(find(corpus, "cakes", SearchMode::FullText, 2).await, ["bakery"]);
    }
    let (bucket, other) = (a.bucket().unwrap(), b.bucket().unwrap());
    let mut lease = Lease::to_optimise(bucket, "t").await.unwrap().unwrap();
    assert!(Lease::to_optimise(other, "t").await.unwrap().is_none());
    assert!(lease.renew().await.unwrap());
    lease.give_back().await;
    assert!(Lease::to_optimise(other, "t").await.unwrap().is_some());
    let mut follower = other.gone().follow(None);
    assert!(follower.look().await.unwrap().has_gap);
    let entry = GoneEntry { segments: vec!["s".to_owned()] };
    bucket.gone().tell(&entry).await.unwrap();
    assert_eq!(follower.look().await.unwrap().entries, [entry]);
    b.delete_collection("c", &()).await.unwrap();
    a.refresh().await.unwrap();
    assert_eq!(a.names().await, [""; 0]);
}
