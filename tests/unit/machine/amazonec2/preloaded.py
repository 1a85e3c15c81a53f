"""boto3 with the description of EC2 in memory, which is its largest: reading it costs more than all else that these
tests do. Processes forked from one that has loaded this have it too."""

from __future__ import annotations

import functools

import boto3
import botocore.session

botocore.session.create_loader = functools.cache(botocore.session.create_loader)
boto3.session.Session(region_name="us-east-1").client("ec2", aws_access_key_id="none", aws_secret_access_key="none")
