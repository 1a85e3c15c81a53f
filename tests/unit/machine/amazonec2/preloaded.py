"""Load boto3 and its EC2 service description, which takes longer than everything else these tests do.

Processes forked from one that imported this module have it in memory.
"""

from __future__ import annotations

import functools

import boto3
import botocore.session

botocore.session.create_loader = functools.cache(botocore.session.create_loader)
boto3.session.Session(region_name="us-east-1").client("ec2", aws_access_key_id="none", aws_secret_access_key="none")
