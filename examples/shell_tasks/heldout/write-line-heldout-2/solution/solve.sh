#!/bin/bash
cd /workspace || exit 1
echo gentle wind > minutes.txt
