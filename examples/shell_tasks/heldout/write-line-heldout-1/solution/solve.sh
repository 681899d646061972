#!/bin/bash
cd /workspace || exit 1
echo silver dark > route.txt
