"""An S3 server on loopback for tests and demonstrations: moto, with one empty bucket named "bucket".

Listens on a port of the system's choice, prints its URL, and ends when its standard input closes: with whoever started it,
however that ended.
"""

import logging
import sys

import boto3
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
url = f"http://{host}:{port}"
key = dict(region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test")
boto3.client("s3", endpoint_url=url, **key).create_bucket(Bucket="bucket")
print(url, flush=True)
sys.stdin.read()
server.stop()
